"""LocalSharedState: the state of a router that is alone, in memory."""

from collections import OrderedDict
from collections.abc import Mapping

from chairlift.core.clock import Clock, SystemClock
from chairlift.router.shared_state.base import EjectionListener, SharedEjection, SharedStateStatus


class LocalSessionTable:
    """The replica of each session, in memory; the least recently used sessions make room for new ones.

    The time to live of a session is in seconds since its last use.
    """

    def __init__(self, ttl_seconds: float, max_sessions: int, clock: Clock | None = None) -> None:
        self._ttl_seconds, self._max_sessions = ttl_seconds, max_sessions
        self._clock = clock or SystemClock()
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    async def get(self, key: str) -> str | None:
        """Return the id of a session's replica, None for a session without one; counts as a use."""
        replica_id = self._live(key)
        if replica_id is not None:
            self.put(key, replica_id)
        return replica_id

    async def assign(self, key: str, replica_id: str, *, replacing: str | None = None) -> str:
        """Set a session's replica if it has none, or has `replacing`; return the one that it has now."""
        current = self._live(key)
        if current is not None and current != replacing:
            replica_id = current
        self.put(key, replica_id)
        return replica_id

    def put(self, key: str, replica_id: str) -> None:
        """Set a session's replica in any case; counts as a use."""
        self._sessions[key] = replica_id, self._clock.now() + self._ttl_seconds
        self._sessions.move_to_end(key)
        while len(self._sessions) > self._max_sessions or self._is_oldest_expired():
            self._sessions.popitem(last=False)

    def _live(self, key: str) -> str | None:
        replica_id, expires_at = self._sessions.get(key, (None, 0.0))
        return replica_id if replica_id is not None and expires_at > self._clock.now() else None

    def _is_oldest_expired(self) -> bool:
        return next(iter(self._sessions.values()))[1] <= self._clock.now()


class LocalEjectionTable:
    """The ejections of other routers, of which there are none."""

    def eject(self, replica_id: str, seconds: float, reason: str) -> None:
        """Do nothing: no other router listens."""

    def restore(self, replica_id: str) -> None:
        """Do nothing: no other router listens."""

    def of_other_routers(self, now: float) -> Mapping[str, SharedEjection]:
        """Return no ejection."""
        return {}

    def add_listener(self, listener: EjectionListener) -> None:
        """Do nothing: no other router ejects a replica."""


class LocalSharedState:
    """Sessions in memory, and neither limits nor ejections of other routers."""

    def __init__(self, ttl_seconds: float, max_sessions: int, clock: Clock | None = None) -> None:
        self.tenant_usage = None
        self.sessions = LocalSessionTable(ttl_seconds, max_sessions, clock)
        self.ejections = LocalEjectionTable()

    async def start(self) -> None:
        """Do nothing: there is no server to connect to."""

    async def close(self) -> None:
        """Do nothing: no other router counts this one's requests."""

    def status(self) -> SharedStateStatus:
        """Return that the state is complete as it is."""
        return SharedStateStatus(backend="local")
