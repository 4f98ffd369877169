"""What operators ask: /metrics, /load, and the administration with its own key."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict

from chairlift.core.errors import NotFound
from chairlift.observability.metrics import CONTENT_TYPE
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.middleware import send_bytes, send_object


class Operations:
    """The routes for operators."""

    def __init__(self, replica: Replica, drain: Callable[[], Awaitable[None]]) -> None:
        """Serve them; `drain` begins to leave and returns at once."""
        self._replica = replica
        self._drain = drain

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the page for Prometheus; nobody else waits for it."""
        page = await self._replica.metrics_page()
        await send_bytes(send, page, kind=CONTENT_TYPE.encode())

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say how busy the replica is, for whoever routes."""
        report, line = await self._replica.load(), self._replica.line
        await send_object(
            send, {**asdict(report), "admission_waiting_requests": line.waiting_requests,
                   "admission_waiting_tokens": line.waiting_tokens,
                   "expected_wait_seconds": round(line.expected_wait, 3)},
        )  # fmt: skip

    async def drain(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take nothing new, and leave when what is open has ended."""
        await self._drain()
        await send_object(send, {"state": self._replica.lifecycle.state}, status=202)

    async def state(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dump scheduler and cache."""
        self._replica.lifecycle.check()
        llm = self._replica.llm
        found = {
            "scheduler": await llm.scheduler_state(),
            "cache": await llm.cache_state(),
            "integrity_errors": await llm.check_integrity(),
            "start": llm.report,
        }
        await send_object(send, found)

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell how a request went, or where it is. Raises NotFound."""
        given = scope["path_params"]["id"]
        found = self._replica.telemetry.record(given)
        if found is None and self._replica.lifecycle.phase == "serving":
            state = await self._replica.llm.scheduler_state()
            rides = {
                name: {"state": ride, "wait_reason": state["wait_reasons"].get(name)}
                for name, ride in state["states"].items() if name.rpartition(".")[0] == given
            }  # fmt: skip
            found = {"request_id": given, "rides": rides} if rides else None
        if found is None:
            raise NotFound(f"nothing is known of request {given[:64]!r}")
        await send_object(send, found)
