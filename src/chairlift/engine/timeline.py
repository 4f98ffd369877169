"""A request's life as it is recorded: a few moments, and what it waited for, kept without touching who waits.

The line as a whole stops for one reason at a time (WaitClock). A sequence notes the clock when it joins and reads the
difference when it boards, so a hundred thousand waiting requests cost nothing a step. Only waiting for another
request's prefix is a sequence's own.
"""

from enum import StrEnum

from chairlift.core.request import Timeline, TimelineEvent


class WaitReason(StrEnum):
    """Why a request is in line."""

    BUDGET = "budget"  # the step's tokens are spent, or it had begun already
    BLOCKS = "blocks"  # it, or one before it, does not fit into the free blocks
    RUNNING_LIMIT = "running_limit"  # every seat is taken
    POLICY = "policy"  # the batching policy lets nobody board now
    PREFIX = "prefix"  # another request is computing its next block


QUEUE_WAIT_REASONS = (WaitReason.BUDGET, WaitReason.BLOCKS, WaitReason.RUNNING_LIMIT, WaitReason.POLICY)


class QueueWaitClock:
    """Seconds for which the line has stood still, by reason, since the engine began; one reason at any time.

    So the seconds that a request waited, by reason, add up to its time in line.
    """

    def __init__(self) -> None:
        self._seconds = [0.0] * len(QUEUE_WAIT_REASONS)
        self._place = QUEUE_WAIT_REASONS.index(WaitReason.BUDGET)
        self._since = 0.0

    @property
    def reason(self) -> WaitReason:
        """Why whoever is in line did not board."""
        return QUEUE_WAIT_REASONS[self._place]

    def set(self, reason: WaitReason, now: float) -> None:
        """Say why the line stands still from now on."""
        self._seconds[self._place] += now - self._since
        self._place, self._since = QUEUE_WAIT_REASONS.index(reason), now

    def read(self, now: float) -> list[float]:
        """Return the seconds so far, in the order of LINE_REASONS."""
        seconds = self._seconds[:]
        seconds[self._place] += now - self._since
        return seconds


class TimelineRecorder:
    """What one request writes down of itself."""

    __slots__ = ("_events", "_mark", "_prefix_since", "_waited", "queued_at")

    def __init__(self, now: float) -> None:
        self.queued_at = now
        self._events: list[tuple[str, float, str]] = [("queued", now, "")]
        self._waited: dict[str, float] = {}
        self._mark: list[float] | None = None
        self._prefix_since: float | None = None

    @property
    def waits_for_prefix(self) -> bool:
        """Whether the wait for somebody else's block is on."""
        return self._prefix_since is not None

    def record(self, name: str, now: float, detail: str = "") -> None:
        """Write down a moment."""
        self._events.append((name, now, detail))

    def enqueued(self, clock: QueueWaitClock, now: float) -> None:
        """It stands in line from now on."""
        self._mark = clock.read(now)

    def prefix_wait(self, clock: QueueWaitClock, now: float) -> None:
        """From now on it waits for another's prefix, whatever the line does."""
        if self._prefix_since is None:
            self._settle(clock, now)
            self._prefix_since = now
            self.record("waiting_for_prefix", now)

    def prefix_wait_ended(self, clock: QueueWaitClock, now: float) -> None:
        """The prefix is there, or the wait was given up."""
        if self._prefix_since is not None:
            self._add(WaitReason.PREFIX, now - self._prefix_since)
            self._prefix_since = None
            self._mark = clock.read(now)

    def dequeued(self, clock: QueueWaitClock, now: float) -> None:
        """It stands in line no more."""
        self.prefix_wait_ended(clock, now)
        self._settle(clock, now)
        self._mark = None

    def _settle(self, clock: QueueWaitClock, now: float) -> None:
        if self._mark is not None:
            for reason, was, seconds in zip(QUEUE_WAIT_REASONS, self._mark, clock.read(now), strict=True):
                self._add(reason, seconds - was)

    def _add(self, reason: WaitReason, seconds: float) -> None:
        if seconds > 0:
            self._waited[reason] = self._waited.get(reason, 0.0) + seconds

    def build(self) -> Timeline:
        """Return what was written, in seconds since the request was queued."""
        events = tuple([TimelineEvent(name, at - self.queued_at, detail) for name, at, detail in self._events])
        return Timeline(events, tuple(self._waited.items()))
