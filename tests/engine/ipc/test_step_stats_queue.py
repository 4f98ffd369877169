"""Steps wait in order for a client that watches; beyond a bound they are counted instead of kept."""

import pytest

from chairlift.engine.ipc.step_stats_queue import StepStatsQueue
from support_stats import make_stats


def test_steps_come_out_in_order_and_once() -> None:
    backlog = StepStatsQueue()
    assert not backlog
    for step in range(3):
        backlog.add(make_stats(step))
    assert backlog
    steps, unseen = backlog.take()
    assert [stats.step_id for stats in steps] == [0, 1, 2] and unseen == 0
    assert backlog.take() == ([], 0) and not backlog


def test_those_that_do_not_fit_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.engine.ipc.step_stats_queue.MAX_STEPS", 4)
    backlog = StepStatsQueue()
    for step in range(7):
        backlog.add(make_stats(step))
    steps, unseen = backlog.take()
    assert [stats.step_id for stats in steps] == [0, 1, 2, 3] and unseen == 3
    backlog.add(make_stats(7))
    steps, unseen = backlog.take()
    assert [stats.step_id for stats in steps] == [7] and unseen == 0
