"""DebugReport: everything that explains a replica's behaviour, as GET /admin/debug sends it.

It has no prompts, no outputs and no keys. Each part may fail alone: its error takes its place.
"""

from dataclasses import asdict
from functools import partial
from typing import Any

from chairlift.server.replica import Replica
from chairlift.web.service.process_report import process_report

MAX_CHECKED_BLOCKS = 100_000
"""Blocks of a cache whose consistency is checked: the check takes 1 to 2 microseconds a block, between two steps.
/admin/state checks a larger one, too."""

NUM_FINISHED_REQUESTS = 100


class DebugReport:
    """Builds the reports of one replica. Belongs to its event loop."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def build(self) -> dict[str, Any]:
        """Return the report; a hanging engine is waited for as engine_reader does."""
        replica, lifecycle = self._replica, self._replica.lifecycle
        pid = replica.engine_pid()
        pids = {} if pid is None else {"engine": pid}
        report = await replica.in_metrics_thread(
            partial(process_report, "replica", lifecycle.age, replica.shown_settings, pids)
        )  # fmt: skip
        admission = replica.admission
        return report | {
            "state": lifecycle.state,
            "reason": lifecycle.reason,
            "models": list(replica.config.served_names),
            "fingerprint": replica.reporter.fingerprint,
            "admission": {
                "open_requests": admission.open_requests, "running_requests": admission.running_requests,
                "waiting_requests": admission.waiting_requests, "waiting_tokens": admission.waiting_tokens,
                "expected_wait_seconds": round(admission.expected_wait, 3),
            },
            "resources": asdict(replica.resources.usage),
            "engine": await engine_part(replica, MAX_CHECKED_BLOCKS),
            "recent_steps": [asdict(stats) for stats in list(replica.recent_steps)],
            "finished_requests": replica.telemetry.recent_records(NUM_FINISHED_REQUESTS),
        }  # fmt: skip


async def engine_part(replica: Replica, max_checked_blocks: float) -> dict[str, Any]:
    """Return what is known of the engine; `error` says why something lacks, as with an engine that hangs."""
    if not replica.has_service:
        return {"error": "the engine has not started"}
    client = replica.service.client
    state = await replica.engine_reader.read_state(client, max_checked_blocks)
    return {"restarts": client.restarts, "startup_report": dict(client.info.startup_report)} | state
