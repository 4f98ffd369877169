"""EndpointMerger: joins the lists of several sources; no I/O and no clock.

A source that fails keeps its last list. An empty list after one that was not empty is believed after a grace time: a
registry that lost its data must not take every replica away at once. Where two sources name one URL, the source that
was given first decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.base import Snapshot, SourceState, SourceStatus

EMPTY_GRACE_SECONDS = 60.0
MAX_ENDPOINTS = 10_000
"""Most replicas of one source."""


@dataclass(slots=True)
class _SourceList:
    """The list of a source that is in use, and its state."""

    name: str
    since: float
    state: SourceState = SourceState.STARTING
    endpoints: Snapshot = ()
    num_updates: int = 0
    num_failures: int = 0
    last_error: str = ""

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
        each = self._lists[index]
        each.num_updates += 1
        if snapshot or not each.endpoints:
            each.endpoints = snapshot
            each.enter(SourceState.UP, now)
        else:
            each.enter(SourceState.EMPTY, now)
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
            if each.state is SourceState.EMPTY and now >= each.since + self._empty_grace:
                each.endpoints = ()
                each.enter(SourceState.UP, now)

    @property
    def next_tick(self) -> float | None:
        """When `tick` has something to do, None if nothing waits."""
        return min(
            (each.since + self._empty_grace for each in self._lists if each.state is SourceState.EMPTY), default=None
        )

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
