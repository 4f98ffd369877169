"""QueueWaitClock, WaitReason: the seconds for which the waiting queue stood still, by reason."""

from enum import StrEnum


class WaitReason(StrEnum):
    """Why a request is waiting."""

    BUDGET = "budget"  # the step's tokens are spent, or the step had started already
    BLOCKS = "blocks"  # the request, or one before it, does not fit into the free blocks
    RUNNING_LIMIT = "running_limit"  # max_running_sequences are running
    POLICY = "policy"  # the batching policy starts no waiting sequence now
    PREFIX = "prefix"  # another request is computing its next block


QUEUE_WAIT_REASONS = (WaitReason.BUDGET, WaitReason.BLOCKS, WaitReason.RUNNING_LIMIT, WaitReason.POLICY)


class QueueWaitClock:
    """Counts the seconds that the waiting queue stood still, by reason, since the engine started.

    One reason holds at any time, so the seconds of a request by reason add up to its time in the queue.
    """

    def __init__(self) -> None:
        self._seconds = [0.0] * len(QUEUE_WAIT_REASONS)
        self._index = QUEUE_WAIT_REASONS.index(WaitReason.BUDGET)
        self._since = 0.0

    @property
    def reason(self) -> WaitReason:
        """Why waiting sequences do not start now."""
        return QUEUE_WAIT_REASONS[self._index]

    def set(self, reason: WaitReason, now: float) -> None:
        """Set the reason from now on."""
        self._seconds[self._index] += now - self._since
        self._index, self._since = QUEUE_WAIT_REASONS.index(reason), now

    def read(self, now: float) -> list[float]:
        """Return the seconds so far, in the order of QUEUE_WAIT_REASONS."""
        seconds = self._seconds[:]
        seconds[self._index] += now - self._since
        return seconds
