"""Lifecycle: the server's state, and its routes /livez, /readyz and /health.

    starting ──> ready <──> dead (its engine is started again)
        └───────── │ ────────┘
                   ▼
                draining ──> stopped

A server is alive if it responds at all, and ready if it would serve a request now.
"""

import time
from collections.abc import Callable

from chairlift.core.errors import Unavailable
from chairlift.core.load_report import ReplicaState
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.send_response import send_bytes, send_object

RETRY_SECONDS = {ReplicaState.STARTING: 2.0, ReplicaState.DEAD: 5.0, ReplicaState.DRAINING: 1.0}

STATE_MESSAGES = {
    ReplicaState.STARTING: "the server is starting",
    ReplicaState.DEAD: "the engine failed and is not restarted",
    ReplicaState.DRAINING: "the server is leaving: it finishes what it has and takes nothing new",
    ReplicaState.STOPPED: "the server has stopped",
}
ENGINE_STARTS = "the engine is down; it is started again"


def leaving_error() -> Unavailable:
    """Return the error for a client whose request comes too late."""
    state = ReplicaState.DRAINING
    return Unavailable(STATE_MESSAGES[state], state=str(state), retry_after=RETRY_SECONDS[state])


class Lifecycle:
    """State of start and shutdown; the engine's state is queried each time.

    Attributes:
        phase: the current phase of the start, for people.
    """

    def __init__(self) -> None:
        self.phase = "starting"
        self._started_at = time.monotonic()
        self._engine: Callable[[], ReplicaState] | None = None
        self._restart_message = ENGINE_STARTS
        self._is_draining = False

    def mark_started(self, engine: Callable[[], ReplicaState], restart_message: str = ENGINE_STARTS) -> None:
        """Serve requests while `engine` returns READY; the call must not block.

        `restart_message` says why it returns STARTING later.
        """
        self.phase, self._engine, self._restart_message = "serving", engine, restart_message

    def drain(self) -> None:
        """Reject new requests from now on."""
        self._is_draining = True

    @property
    def state(self) -> ReplicaState:
        """The current state."""
        if self._is_draining:
            return ReplicaState.DRAINING
        return ReplicaState.STARTING if self._engine is None else self._engine()

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_at

    @property
    def reason(self) -> str:
        """Why requests are not served now, "" while they are."""
        state = self.state
        if state is ReplicaState.STARTING and self._engine is not None:
            return self._restart_message
        return STATE_MESSAGES.get(state, "")

    def check(self) -> None:
        """Raise Unavailable unless a request would be served now."""
        if (state := self.state) is not ReplicaState.READY:
            raise Unavailable(self.reason, state=str(state), retry_after=RETRY_SECONDS.get(state, 1.0))

    def check_not_leaving(self) -> None:
        """Raise Unavailable once the server drains or has stopped: nothing new is stored then."""
        if self.state in (ReplicaState.DRAINING, ReplicaState.STOPPED):
            self.check()

    # -- routes ----------------------------------------------------------------------------------------------------

    async def livez(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond 200: the process is alive."""
        await send_object(send, {"alive": True})

    async def readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond 200 while requests are served, else 503."""
        state = self.state
        await send_object(send, {"state": state}, status=200 if state is ReplicaState.READY else 503)

    async def ping(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond as readyz does, with an empty body, as SageMaker's and vLLM's health check."""
        await send_bytes(send, b"", kind=b"text/plain", status=200 if self.state is ReplicaState.READY else 503)

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond as readyz does, with the reason."""
        state = self.state
        body = {
            "state": state,
            "reason": self.reason,
            "phase": self.phase,
            "uptime_seconds": round(self.age, 3),
        }
        await send_object(send, body, status=200 if state is ReplicaState.READY else 503)
