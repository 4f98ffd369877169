"""DebugReport: everything that explains a replica's behaviour, as GET /admin/debug sends it.

It has no prompts, no outputs and no keys. Each part may fail alone: its error takes its place.
"""

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any

from chairlift.core.errors import ChairliftError
from chairlift.server.replica import Replica
from chairlift.web.service.process_report import process_report

ENGINE_SECONDS = 3.0
"""Seconds to wait for the engine, which answers between two steps; a step may take longer, and a hanging one never
ends."""

MAX_CHECKED_BLOCKS = 100_000
"""Blocks of a cache whose consistency is checked: the check takes 1 to 2 microseconds a block, between two steps.
/admin/state checks a larger one, too."""

NUM_FINISHED_REQUESTS = 100


class DebugReport:
    """Builds the reports of one replica. Belongs to its event loop."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._reading: asyncio.Future[dict[str, Any]] | None = None

    async def build(self) -> dict[str, Any]:
        """Return the report within ENGINE_SECONDS, whatever the engine does."""
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
            "engine": await self._engine(),
            "recent_steps": [asdict(stats) for stats in list(replica.recent_steps)],
            "finished_requests": replica.telemetry.recent_records(NUM_FINISHED_REQUESTS),
        }  # fmt: skip

    async def _engine(self) -> dict[str, Any]:
        """Return the engine's part, or why there is none; a late answer serves the next report.

        One question at a time is open, so that many reports of a hanging engine hold one thread.
        """
        if not self._replica.has_service:
            return {"error": "the engine has not started"}
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read_engine))
        try:
            return await asyncio.wait_for(asyncio.shield(self._reading), ENGINE_SECONDS)
        except TimeoutError:
            return {
                "error": f"the engine did not answer within {ENGINE_SECONDS:g} s: it computes a long step, or hangs"
            }

    def _read_engine(self) -> dict[str, Any]:
        """Ask the engine, which answers between two steps."""
        client = self._replica.service.client
        report: dict[str, Any] = {"restarts": client.restarts, "startup_report": dict(client.info.startup_report)}
        try:
            report["scheduler"] = client.scheduler_state()
            report["cache"] = cache = client.cache_state()
            if (num_blocks := cache["total_blocks"]) <= MAX_CHECKED_BLOCKS:
                report["integrity_errors"] = client.check_integrity()
            else:
                report["integrity_skipped"] = f"the cache has {num_blocks} blocks, the limit is {MAX_CHECKED_BLOCKS}"
        except ChairliftError as error:
            report["error"] = error.message
        return report
