"""live_fleet: the live data of a router: its replicas and why their health changed, its open and last requests."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from chairlift.router.debug_report import plain_value, source_fields
from chairlift.router.router import Router
from chairlift.web.service.live_feed import Collect, LiveFeed

INTERVAL_SECONDS = 0.5
"""Time between two views of the replicas, all watchers together."""

MAX_OPEN_REQUESTS = 50
"""Open requests whose timelines are sent, the oldest ones."""

SCHEMA = 1
"""Version of the events; it changes when a field is renamed or removed."""


def live_fleet(router: Router, more_topics: Mapping[str, Collect]) -> LiveFeed:
    """Return the feed of a router: `router`, `replicas`, `open_requests`, `requests`, `transitions`, and more."""

    async def router_fields() -> object:
        return _router(router)

    async def replicas() -> object:
        return [plain_value(asdict(each)) for each in router.replicas.statuses(router.clock.now())]

    async def open_requests() -> object:
        return [each.as_json() for each in islice(router.timelines.open, MAX_OPEN_REQUESTS)]

    topics: dict[str, Collect] = {"router": router_fields, "replicas": replicas, "open_requests": open_requests}
    return LiveFeed(
        lambda: _hello(router, more_topics), {**topics, **more_topics},
        {"requests": router.timelines.log, "transitions": router.transitions.log},
        interval_seconds=INTERVAL_SECONDS, write_timeout=router.config.http.write_timeout,
    )  # fmt: skip


def _hello(router: Router, more_topics: Mapping[str, Collect]) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "service": "fleet" if more_topics else "router", "interval_seconds": INTERVAL_SECONDS,
        "policy": router.config.policy,
    }  # fmt: skip


def _router(router: Router) -> dict[str, Any]:
    now = router.clock.now()
    return {
        "state": router.lifecycle.state, "reason": router.lifecycle.reason, "models": router.model_names(),
        "open_requests": router.num_open_requests,
        "admission_waiting_requests": router.admission.waiting_requests,
        "held_requests": router.hold.num_requests, "requests_without_replica": router.num_requests_without_replica,
        "num_suppressed_ejections": router.replicas.num_suppressed_ejections,
        "sources": [source_fields(each, now) for each in router.source_statuses()],
        "shared_state": asdict(router.shared_state.status()),
    }  # fmt: skip
