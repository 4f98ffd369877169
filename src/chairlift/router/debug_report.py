"""router_debug_report: everything that explains a router's behaviour, as GET /admin/debug sends it.

It has no prompts, no outputs and no keys.
"""

import asyncio
from dataclasses import asdict
from itertools import islice
from typing import Any

from chairlift.router.discovery.base import SourceStatus
from chairlift.router.router import Router
from chairlift.web.service.process_report import process_report

MAX_OPEN_REQUESTS = 500


async def router_debug_report(router: Router) -> dict[str, Any]:
    """Return the report of a router."""
    lifecycle, hold = router.lifecycle, router.hold
    report = await asyncio.to_thread(process_report, "router", lifecycle.age, router.shown_settings)
    now, proxies = router.clock.now(), islice(router.open_proxies, MAX_OPEN_REQUESTS)
    return report | {
        "state": lifecycle.state,
        "reason": lifecycle.reason,
        "models": router.model_names(),
        "admission": {
            "open_requests": router.admission.open_requests, "waiting_requests": router.admission.waiting_requests,
        },
        "num_open_requests": router.num_open_requests,
        "open_requests": [proxy.describe() for proxy in proxies],
        "held_requests": {"is_enabled": hold.is_enabled, "requests": hold.num_requests, "tokens": hold.num_tokens},
        "replicas": [plain_value(asdict(each)) for each in router.replicas.statuses(now)],
        "transitions": router.transitions.log.entries(),
        "sources": [source_fields(each, now) for each in router.source_statuses()],
        "shared_state": asdict(router.shared_state.status()),
        "has_replica_admin_key": router.upstream.has_admin_key,
        **{name: plain_value(read()) for name, read in router.debug_parts.items()},
    }  # fmt: skip


def source_fields(status: SourceStatus, now: float) -> dict[str, Any]:
    """Return the JSON object of a source; a time of this process's clock means nothing to others."""
    fields = asdict(status)
    return fields | {"state_seconds": round(now - fields.pop("since"), 3)}


def plain_value(value: Any) -> Any:
    """Return a value without sets, which JSON does not have."""
    if isinstance(value, dict):
        return {key: plain_value(each) for key, each in value.items()}
    if isinstance(value, frozenset | set | tuple | list):
        return [plain_value(each) for each in (sorted(value) if isinstance(value, frozenset | set) else value)]
    return value
