"""TimelineRecorder: records the events of a request and its wait by reason.

The waiting queue as a whole stops for one reason at a time (QueueWaitClock). A sequence reads the clock when it is
queued and takes the difference when it starts, so a hundred thousand waiting requests cost nothing a step. Only the
wait for another request's prefix is recorded per sequence.
"""

from chairlift.core.request_timeline import Timeline, TimelineEvent
from chairlift.engine.queue_wait_by_reason import QUEUE_WAIT_REASONS, QueueWaitClock, WaitReason


class TimelineRecorder:
    """Records the events and waits of one sequence."""

    __slots__ = ("_events", "_prefix_since", "_queue_mark", "_waited", "queued_at")

    def __init__(self, now: float) -> None:
        self.queued_at = now
        self._events: list[tuple[str, float, str]] = [("queued", now, "")]
        self._waited: dict[str, float] = {}
        self._queue_mark: list[float] | None = None
        self._prefix_since: float | None = None

    @property
    def waits_for_prefix(self) -> bool:
        """Whether the sequence waits for another request's block."""
        return self._prefix_since is not None

    def record(self, name: str, now: float, detail: str = "") -> None:
        """Record an event."""
        self._events.append((name, now, detail))

    def enqueued(self, clock: QueueWaitClock, now: float) -> None:
        """Start the wait in the queue."""
        self._queue_mark = clock.read(now)

    def prefix_wait(self, clock: QueueWaitClock, now: float) -> None:
        """Start the wait for another request's prefix, which replaces the queue's reason."""
        if self._prefix_since is None:
            self._settle(clock, now)
            self._prefix_since = now
            self.record("waiting_for_prefix", now)

    def prefix_wait_ended(self, clock: QueueWaitClock, now: float) -> None:
        """End the wait for a prefix, if one is in progress."""
        if self._prefix_since is not None:
            self._add(WaitReason.PREFIX, now - self._prefix_since)
            self._prefix_since = None
            self._queue_mark = clock.read(now)

    def dequeued(self, clock: QueueWaitClock, now: float) -> None:
        """End the wait in the queue."""
        self.prefix_wait_ended(clock, now)
        self._settle(clock, now)
        self._queue_mark = None

    def wait_seconds(self, clock_seconds: list[float], now: float) -> float:
        """Return the seconds in the queue so far, for any reason; `clock_seconds` is the clock as read at `now`."""
        seconds = sum(self._waited.values())
        if self._prefix_since is not None:
            return seconds + now - self._prefix_since
        if self._queue_mark is None:
            return seconds
        return seconds + sum(clock_seconds) - sum(self._queue_mark)

    def _settle(self, clock: QueueWaitClock, now: float) -> None:
        if self._queue_mark is not None:
            for reason, start, seconds in zip(QUEUE_WAIT_REASONS, self._queue_mark, clock.read(now), strict=True):
                self._add(reason, seconds - start)

    def _add(self, reason: WaitReason, seconds: float) -> None:
        if seconds > 0:
            self._waited[reason] = self._waited.get(reason, 0.0) + seconds

    def build(self) -> Timeline:
        """Return the recorded timeline, in seconds since the request was queued."""
        events = tuple([TimelineEvent(name, at - self.queued_at, detail) for name, at, detail in self._events])
        return Timeline(events, tuple(self._waited.items()))
