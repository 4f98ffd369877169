"""check_router: what is wrong with the replicas behind a live router, its sources and its autoscaler, by its report."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chairlift.cli.diagnosis.finding import ERROR, WARNING, Finding
from chairlift.cli.diagnosis.metrics_page import increase
from chairlift.cli.diagnosis.server_checks import page_of
from chairlift.cli.diagnosis.server_snapshot import ServerSnapshot

ABLE_TO_SERVE = ("healthy", "probing")
BAD_STATES = ("ejected", "unhealthy", "probing", "not_ready", "pending")

SETTLE_SECONDS = 10.0
"""Time for which a replica may be pending or not ready before that is a finding: it starts, or stops."""

MAX_REPLICAS_NAMED = 5


def replicas_of(snapshot: ServerSnapshot) -> list[dict[str, Any]]:
    """Return the replicas that a router lists, none for a replica."""
    replicas = snapshot.object("debug").get("replicas")
    return [each for each in replicas if isinstance(each, dict)] if isinstance(replicas, list) else []


CONTROLLERS = ("router", "autoscaler")
"""Services whose own report says how their replicas are."""

Row = tuple[str, str, str]
"""Name of the check, level, and what is wrong."""


def check_router(before: ServerSnapshot, now: ServerSnapshot) -> Iterator[Finding]:
    """Yield what is wrong by the router's own report; nothing for a replica. An autoscaler alone is checked, too."""
    debug = now.object("debug")
    if (service := debug.get("service")) not in CONTROLLERS:
        return
    rows: list[Row] = []
    if service == "router":
        rows += [
            *_replica_states(debug), *_sources(debug), *_shared_state(debug), *_differences(replicas_of(now)),
            *_restarts(before, now),
        ]  # fmt: skip
    for check, level, what in (*rows, *_autoscaler(before, now, debug)):
        yield Finding(check=check, level=level, server=now.url, what=what)


def _replica_states(debug: Mapping[str, Any]) -> Iterator[Row]:
    replicas = debug.get("replicas") or []
    target = (debug.get("autoscaler") or {}).get("target")
    if not any(each.get("state") in ABLE_TO_SERVE for each in replicas) and target != 0:
        held = (debug.get("held_requests") or {}).get("requests", 0)
        waiting = f", and {held} requests wait" if held else ""
        yield "no_replica", ERROR, f"none of {len(replicas)} replicas can serve{waiting}"
    for each in replicas:
        state, seconds = each.get("state"), each.get("seconds_in_state") or 0.0
        is_settling = state in ("pending", "not_ready") and seconds < SETTLE_SECONDS
        if state in BAD_STATES and not is_settling:
            what = f"replica {each.get('replica_id')} is {state} since {seconds:.0f} s: {each.get('reason')}"
            yield "replica_state", WARNING, what


def _sources(debug: Mapping[str, Any]) -> Iterator[Row]:
    has_replicas = bool(debug.get("replicas"))
    for source in debug.get("sources") or ():
        name, state = source.get("name"), source.get("state")
        level = WARNING if has_replicas else ERROR
        if state == "down":
            what = f"source {name} is down since {source.get('state_seconds', 0):.0f} s: {source.get('last_error')}"
            yield "source_down", level, what
        elif state == "empty" or (state == "up" and not source.get("num_endpoints") and "autoscaler" not in debug):
            yield "source_empty", level, f"source {name} answers with an empty list of replicas"


def _shared_state(debug: Mapping[str, Any]) -> Iterator[Row]:
    state = debug.get("shared_state") or {}
    if state.get("is_connected") is False:
        seconds = state.get("outage_seconds") or 0.0
        yield (
            "shared_state",
            WARNING,
            f"{state.get('address')} is unavailable since {seconds:.0f} s: {state.get('error')}",
        )


def _differences(replicas: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    versions, weights = defaultdict[str, list[str]](list), defaultdict[str, dict[str, list[str]]](dict)
    for each in replicas:
        name = str(each.get("replica_id"))
        if version := each.get("server_version"):
            versions[str(version)].append(name)
        fingerprints = (each.get("load") or {}).get("fingerprints") or {}
        for model in each.get("models") or ():
            if fingerprint := fingerprints.get(model) or fingerprints.get(""):  # "" is every model of the replica
                weights[str(model)].setdefault(str(fingerprint), []).append(name)
    if len(versions) > 1:
        yield "versions", WARNING, f"the replicas have {len(versions)} versions: {_named(versions)}"
    for model, by_fingerprint in weights.items():
        if len(by_fingerprint) > 1:
            what = f"the replicas of {model} have {len(by_fingerprint)} kinds of weights, tokenizers or templates: "
            yield "weights", WARNING, what + _named(by_fingerprint)


def _named(groups: Mapping[str, Sequence[str]]) -> str:
    """Return each value with the replicas that have it."""
    parts = []
    for value, names in sorted(groups.items()):
        more = f" and {len(names) - MAX_REPLICAS_NAMED} more" if len(names) > MAX_REPLICAS_NAMED else ""
        parts.append(f"{value} on {', '.join(names[:MAX_REPLICAS_NAMED])}{more}")
    return "; ".join(parts)


def _restarts(before: ServerSnapshot, now: ServerSnapshot) -> Iterator[Row]:
    total = page_of(now).total("router_replica_restarts_total") or 0.0
    if total:
        recent = increase(page_of(before), page_of(now), "router_replica_restarts_total")
        yield "restarts", ERROR if recent else WARNING, f"the router has seen {total:.0f} restarts of replicas"


def _autoscaler(before: ServerSnapshot, now: ServerSnapshot, debug: Mapping[str, Any]) -> Iterator[Row]:
    autoscaler = debug.get("autoscaler")
    if not isinstance(autoscaler, dict):
        return
    failures = {name: number for name, number in (autoscaler.get("failures") or {}).items() if number}
    if failures:
        recent = increase(page_of(before), page_of(now), "autoscaler_failures_total")
        counts = ", ".join(f"{name} {number}" for name, number in failures.items())
        level = ERROR if recent else WARNING
        yield "autoscaler_failing", level, f"the autoscaler has failed since the start: {counts}"
    pool = debug.get("pool") or {}
    for replica_id, reason in (pool.get("failed") or {}).items():
        yield "autoscaler_stuck", WARNING, f"replica {replica_id} has failed: {reason}"
    if reason := pool.get("update_failure"):
        yield "autoscaler_stuck", WARNING, f"the last update was stopped: {reason}"
    target, ready = autoscaler.get("target") or 0, (autoscaler.get("replicas") or {}).get("ready", 0)
    if target > ready:
        yield "autoscaler_stuck", WARNING, f"{target - ready} of {target} replicas that are wanted are not ready"
    if autoscaler.get("is_data_missing"):
        yield "autoscaler_data", WARNING, "the newest decision lacked data, so the pool does not shrink"
