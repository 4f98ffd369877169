"""EndpointMerger: joins the lists of several sources; no I/O and no clock.

A source that fails keeps its last list. An empty list after one that was not empty is believed after a grace time: a
registry that lost its data must not take every replica away at once. Its replicas register again one after the other,
so the lists that follow are joined with the replicas that are still missing, until each is listed again or the grace
time ends. Where two sources name one URL, the source that was given first decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.base import Snapshot, SourceState, SourceStatus
from chairlift.router.endpoint import Endpoint

EMPTY_GRACE_SECONDS = 60.0
MAX_ENDPOINTS = 10_000
"""Most replicas of one source."""


@dataclass(slots=True)
class _SourceList:
    """The list of a source that is in use, and its state.

    Attributes:
        name: the source as the user wrote it.
        since: when its state began.
        state: its state.
        listed: its last list.
        held: replicas that an empty list removed and that no list has named since, and when each leaves, by URL.
        num_updates: lists received.
        num_failures: failures.
        last_error: reason of the last failure.
    """

    name: str
    since: float
    state: SourceState = SourceState.STARTING
    listed: Snapshot = ()
    held: dict[str, tuple[Endpoint, float]] = field(default_factory=dict)
    num_updates: int = 0
    num_failures: int = 0
    last_error: str = ""

    @property
    def endpoints(self) -> Snapshot:
        """The replicas in use."""
        return (*self.listed, *(endpoint for endpoint, _ in self.held.values()))

    def take(self, snapshot: Snapshot, until: float) -> None:
        """Replace the list; an empty one holds the replicas of the list before it."""
        if not snapshot:
            self.held |= {endpoint.url: (endpoint, until) for endpoint in self.listed}
        self.listed = snapshot
        for endpoint in snapshot:
            self.held.pop(endpoint.url, None)

    def expire(self, now: float) -> None:
        """Believe the empty lists whose grace time is over."""
        self.held = {url: (endpoint, until) for url, (endpoint, until) in self.held.items() if now < until}

    def enter(self, state: SourceState, now: float) -> None:
        if state is not self.state:
            self.state, self.since = state, now


class EndpointMerger:
    """The lists of all sources, in order of precedence."""

    def __init__(self, names: Sequence[str], now: float, *, empty_grace_seconds: float = EMPTY_GRACE_SECONDS) -> None:
        """Begin with sources that have not answered; `now` is monotonic seconds."""
        self._lists = [_SourceList(name, now) for name in names]
        self._empty_grace = empty_grace_seconds

    def update(self, index: int, snapshot: Snapshot, now: float) -> SourceState:
        """Take the list of a source, and return its state. Raises DiscoveryFailed for one that is too long."""
        if len(snapshot) > MAX_ENDPOINTS:
            raise DiscoveryFailed(f"the list has {len(snapshot)} replicas, the limit is {MAX_ENDPOINTS}")
        each, until = self._lists[index], now + self._empty_grace
        each.num_updates += 1
        if each.state is SourceState.DOWN:  # nothing could be listed again
            each.held = {url: (endpoint, until) for url, (endpoint, _) in each.held.items()}
        each.take(snapshot, until)
        each.enter(SourceState.EMPTY if each.held else SourceState.UP, now)
        self.tick(now)
        return each.state

    def fail(self, index: int, reason: str, now: float) -> bool:
        """Record that a source failed; return whether it was not down, or was for another reason."""
        each = self._lists[index]
        is_new = each.state is not SourceState.DOWN or each.last_error != reason
        each.num_failures += 1
        each.last_error = reason
        each.enter(SourceState.DOWN, now)
        return is_new

    def tick(self, now: float) -> None:
        """Believe the empty lists whose grace time is over."""
        for each in self._lists:
            if each.state is SourceState.EMPTY:
                each.expire(now)
                each.enter(SourceState.EMPTY if each.held else SourceState.UP, now)

    @property
    def next_tick(self) -> float | None:
        """When `tick` has something to do, None if nothing waits."""
        waiting = (each for each in self._lists if each.state is SourceState.EMPTY)
        return min((until for each in waiting for _, until in each.held.values()), default=None)

    @property
    def is_complete(self) -> bool:
        """Whether every source has answered or failed once."""
        return all(each.state is not SourceState.STARTING for each in self._lists)

    def merged(self) -> Snapshot:
        """Return the endpoints of all sources, each URL once, in order of the URLs."""
        by_url = {endpoint.url: endpoint for each in reversed(self._lists) for endpoint in reversed(each.endpoints)}
        return tuple(by_url[url] for url in sorted(by_url))

    def statuses(self) -> tuple[SourceStatus, ...]:
        """Return the status of each source, in order of precedence."""
        return tuple(
            SourceStatus(
                name=each.name, state=each.state, since=each.since, num_endpoints=len(each.endpoints),
                num_updates=each.num_updates, num_failures=each.num_failures, last_error=each.last_error,
            )
            for each in self._lists
        )  # fmt: skip
