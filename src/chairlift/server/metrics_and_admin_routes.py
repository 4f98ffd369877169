"""AdminRoutes: serves /metrics, /load, and the administration routes, which need an admin key."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from chairlift.core.errors import EngineDead, NotFound, Unavailable
from chairlift.server.debug_report import DebugReport, engine_part
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send, header
from chairlift.web.send_response import send_bytes, send_object

RETRY_SECONDS = 2.0
"""Seconds after which a question to an engine that did not answer may be asked again."""


class AdminRoutes:
    """The routes for operators."""

    def __init__(self, replica: Replica, drain: Callable[[], Awaitable[None]]) -> None:
        """Create the routes; `drain` starts the shutdown and returns at once."""
        self._replica = replica
        self._drain = drain
        self._debug_report = DebugReport(replica)

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the Prometheus page; no other request waits for it."""
        page, kind = await self._replica.metrics_page((header(scope, b"accept") or b"").decode("latin-1"))
        await send_bytes(send, page, kind=kind.encode())

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the replica's load, for load balancers."""
        await send_object(send, asdict(self._replica.reporter.report(await self._replica.load())))

    async def drain(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject new requests, and shut down when the open requests have ended."""
        await self._drain()
        await send_object(send, {"state": self._replica.lifecycle.state}, status=202)

    async def state(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the state of the scheduler and the cache, or why the engine does not tell it."""
        lifecycle = self._replica.lifecycle
        lifecycle.check()
        engine = await engine_part(self._replica, math.inf)
        await send_object(send, {"state": lifecycle.state, "reason": lifecycle.reason} | engine)

    async def debug(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything that explains the replica's behaviour, without texts and keys; never fails as a whole."""
        await send_object(send, await self._debug_report.build())

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a finished request's record, or the state of an open one's sequences.

        Raises NotFound, and Unavailable while the engine does not answer.
        """
        request_id = scope["path_params"]["id"]
        body = self._replica.telemetry.record(request_id)
        if body is None and self._replica.lifecycle.phase == "serving":
            replica = self._replica
            try:
                state = await replica.engine_reader.ask("scheduler", replica.service.client.scheduler_state)
            except EngineDead as error:
                raise Unavailable(error.message, retry_after=RETRY_SECONDS) from None
            sequences: dict[str, dict[str, object]] = {
                seq_name: {"state": status, "wait_reason": state["wait_reasons"].get(seq_name)}
                for seq_name, status in state["states"].items() if seq_name.rpartition(".")[0] == request_id
            }  # fmt: skip
            for seq_name, fields in sequences.items():
                if choices := state["choices"].get(seq_name):
                    fields["choices"] = choices
            body = {"request_id": request_id, "sequences": sequences} if sequences else None
        if body is None:
            raise NotFound(f"there is no record of request {request_id[:64]!r}")
        await send_object(send, body)
