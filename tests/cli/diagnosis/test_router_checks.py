"""Each check of a router finds its fault in the router's own report, and is silent about a healthy fleet."""

from typing import Any

import pytest

from chairlift.cli.diagnosis.finding import ERROR, WARNING
from chairlift.cli.diagnosis.router_checks import check_router, replicas_of
from support_diagnosis import snapshot
from support_shares import for_each


def replica(name: str, state: str = "healthy", **fields: Any) -> dict[str, Any]:
    load = {"fingerprints": {"": fields.pop("fingerprint", "same")}}
    return {
        "replica_id": f"http://{name}", "state": state, "reason": "2 failures", "seconds_in_state": 60.0,
        "server_version": "1.0", "models": ["m"], "kind": "chairlift", "load": load, **fields,
    }  # fmt: skip


def source(state: str, num_endpoints: int = 2) -> dict[str, Any]:
    return {"name": "dns://r", "state": state, "num_endpoints": num_endpoints, "state_seconds": 9.0,
            "last_error": "no answer"}  # fmt: skip


def report(**fields: Any) -> dict[str, Any]:
    two = [replica("a"), replica("b")]
    connected = {"is_connected": True, "address": "", "error": "", "outage_seconds": 0.0}
    return {"service": "router", "replicas": two, "sources": [source("up")], "shared_state": connected, **fields}


def autoscaler(**fields: Any) -> dict[str, Any]:
    healthy = {"target": 2, "replicas": {"ready": 2}, "failures": {"apply": 0}, "is_data_missing": False}
    return {"autoscaler": {**healthy, **fields}, "pool": {"failed": {}, "update_failure": ""}}


OUTAGE = {"is_connected": False, "address": "redis:6379", "error": "refused", "outage_seconds": 7.0}
NONE: list[Any] = []

FAULTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("replica_state", WARNING, {"replicas": [replica("a"), replica("b", "ejected")]}, "b is ejected since 60 s"),
    ("replica_state", WARNING, {"replicas": [replica("a"), replica("b", "probing")]}, "b is probing"),
    ("no_replica", ERROR, {"replicas": [replica("a", "drained")], "held_requests": {"requests": 3}},
     "none of 1 replicas can serve, and 3 requests wait"),
    ("source_down", WARNING, {"sources": [source("down")]}, "dns://r is down since 9 s: no answer"),
    ("source_empty", WARNING, {"sources": [source("empty")]}, "dns://r answers with an empty list"),
    ("source_empty", WARNING, {"sources": [source("up", 0)]}, "dns://r answers with an empty list"),
    ("shared_state", WARNING, {"shared_state": OUTAGE}, "redis:6379 is unavailable since 7 s: refused"),
    ("versions", WARNING, {"replicas": [replica("a"), replica("b", server_version="0.9")]},
     "2 versions: 0.9 on http://b; 1.0 on http://a"),
    ("weights", WARNING, {"replicas": [replica("a"), replica("b", fingerprint="other")]}, "the replicas of m have 2"),
    ("autoscaler_failing", WARNING, autoscaler(failures={"apply": 4, "sample": 0}), "apply 4"),
    ("autoscaler_stuck", WARNING, autoscaler(target=3), "1 of 3 replicas"),
    ("autoscaler_stuck", WARNING, autoscaler() | {"pool": {"failed": {"r-1": "exit code 1"}}}, "r-1 has failed: exit"),
    ("autoscaler_stuck", WARNING, autoscaler() | {"pool": {"update_failure": "it timed out"}}, "it timed out"),
    ("autoscaler_data", WARNING, autoscaler(is_data_missing=True), "lacked data"),
]  # fmt: skip


@for_each(("check", "level", "fields", "what"), FAULTS)
def test_a_fault_is_found(check: str, level: str, fields: dict[str, Any], what: str) -> None:
    (finding,) = check_router(snapshot(), snapshot(debug=report(**fields), at=2.0))
    assert (finding.check, finding.level, finding.server) == (check, level, "http://server") and what in finding.what


@for_each(
    "fields",
    [
        {}, {"replicas": [replica("a"), replica("b", "drained")]}, autoscaler(),
        {"replicas": [replica("a"), replica("b", "pending", seconds_in_state=1.0)]},
        {"replicas": [replica("a"), replica("b", models=["n"], fingerprint="other")]},
        {"replicas": NONE, "sources": [source("up", 0)], **autoscaler(target=0, replicas={})},
    ],
)  # fmt: skip
def test_a_healthy_fleet_has_no_finding(fields: dict[str, Any]) -> None:
    assert list(check_router(snapshot(), snapshot(debug=report(**fields), at=2.0))) == []


def test_sources_without_any_replica_are_an_error() -> None:
    findings = check_router(snapshot(), snapshot(debug=report(replicas=NONE, sources=[source("down", 0)]), at=2.0))
    assert [(each.check, each.level) for each in findings] == [("no_replica", ERROR), ("source_down", ERROR)]


@pytest.mark.parametrize(("before", "level"), [(3, WARNING), (2, ERROR)])
def test_restarts_of_replicas_are_found(before: int, level: str) -> None:
    name = "router_replica_restarts_total"
    (finding,) = check_router(snapshot(f"{name} {before}"), snapshot(f"{name} 3", report(), at=2.0))
    assert (finding.check, finding.level) == ("restarts", level) and "3 restarts" in finding.what


def test_an_autoscaler_alone_is_checked_for_its_own_faults() -> None:
    debug = autoscaler(target=3, replicas={"ready": 1}) | {"service": "autoscaler", "replicas": [replica("a", "lost")]}
    (finding,) = check_router(snapshot(), snapshot(debug=debug, at=2.0))
    assert finding.check == "autoscaler_stuck" and "2 of 3 replicas" in finding.what


def test_a_replica_is_no_router() -> None:
    assert list(check_router(snapshot(), snapshot(debug={"service": "replica"}, at=2.0))) == []
    assert replicas_of(snapshot(debug={"replicas": 7})) == [] and len(replicas_of(snapshot(debug=report()))) == 2
