"""StepStatsQueue keeps step stats in order; beyond its limit it counts them instead."""

import pytest

from chairlift.engine.ipc.step_stats_queue import StepStatsQueue
from support_step_stats import make_stats


def test_steps_come_out_in_order_and_once() -> None:
    queue = StepStatsQueue()
    assert not queue
    for step in range(3):
        queue.add(make_stats(step))
    assert queue
    steps, num_dropped = queue.take()
    assert [stats.step_id for stats in steps] == [0, 1, 2] and num_dropped == 0
    assert queue.take() == ([], 0) and not queue


def test_those_that_do_not_fit_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.engine.ipc.step_stats_queue.MAX_STEPS", 4)
    queue = StepStatsQueue()
    for step in range(7):
        queue.add(make_stats(step))
    steps, num_dropped = queue.take()
    assert [stats.step_id for stats in steps] == [0, 1, 2, 3] and num_dropped == 3
    queue.add(make_stats(7))
    steps, num_dropped = queue.take()
    assert [stats.step_id for stats in steps] == [7] and num_dropped == 0
