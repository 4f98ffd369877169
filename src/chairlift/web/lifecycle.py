"""Lifecycle: where a server is in its life, and what /livez, /readyz and /health say of it.

    starting ──> ready <──> dead (its engine is started again)
        └───────── │ ────────┘
                   ▼
                draining ──> stopped

Alive is who answers at all; ready is who would serve a request now.
"""

import time
from collections.abc import Callable

from chairlift.core.errors import Unavailable
from chairlift.core.load_report import ReplicaState
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.middleware import send_object

RETRY_SECONDS = {ReplicaState.STARTING: 2.0, ReplicaState.DEAD: 5.0, ReplicaState.DRAINING: 1.0}

SAID = {
    ReplicaState.STARTING: "the server is starting",
    ReplicaState.DEAD: "the engine is down for good",
    ReplicaState.DRAINING: "the server is leaving: it finishes what it has and takes nothing new",
    ReplicaState.STOPPED: "the server has stopped",
}
ENGINE_STARTS = "the engine is down; it is started again"


class Lifecycle:
    """Owns what is known of starting and leaving; whether the engine lives is asked for.

    Attributes:
        phase: what the start is busy with, for people.
    """

    def __init__(self) -> None:
        self.phase = "starting"
        self._began = time.monotonic()
        self._engine: Callable[[], ReplicaState] | None = None
        self._is_draining = False

    def started(self, engine: Callable[[], ReplicaState]) -> None:
        """Serve from now on, while `engine` says that it is ready; it must answer at once."""
        self.phase, self._engine = "serving", engine

    def drain(self) -> None:
        """Take nothing new from now on."""
        self._is_draining = True

    @property
    def state(self) -> ReplicaState:
        """Where it is."""
        if self._is_draining:
            return ReplicaState.DRAINING
        return ReplicaState.STARTING if self._engine is None else self._engine()

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def reason(self) -> str:
        """Why nobody is served now, "" while somebody is."""
        state = self.state
        if state is ReplicaState.STARTING and self._engine is not None:
            return ENGINE_STARTS
        return SAID.get(state, "")

    def check(self) -> None:
        """Raise Unavailable unless a request would be served now."""
        if (state := self.state) is not ReplicaState.READY:
            raise Unavailable(self.reason, state=str(state), retry_after=RETRY_SECONDS.get(state, 1.0))

    # -- routes ----------------------------------------------------------------------------------------------------

    async def livez(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer that this process answers."""
        await send_object(send, {"alive": True})

    async def readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 200 to whoever may send requests now, else 503."""
        state = self.state
        await send_object(send, {"state": state}, status=200 if state is ReplicaState.READY else 503)

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as readyz does, and say why."""
        state = self.state
        said = {
            "state": state,
            "reason": self.reason,
            "phase": self.phase,
            "uptime_seconds": round(self.age, 3),
        }
        await send_object(send, said, status=200 if state is ReplicaState.READY else 503)
