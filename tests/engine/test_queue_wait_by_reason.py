"""QueueWaitClock: counts each WaitReason for as long as it holds."""

from chairlift.engine.queue_wait_by_reason import QueueWaitClock, WaitReason


def test_the_clock_counts_each_reason_for_as_long_as_it_holds() -> None:
    clock = QueueWaitClock()
    clock.set(WaitReason.BLOCKS, 2.0)
    clock.set(WaitReason.RUNNING_LIMIT, 5.0)
    assert clock.read(5.5) == [2.0, 3.0, 0.5, 0.0] and clock.reason is WaitReason.RUNNING_LIMIT
