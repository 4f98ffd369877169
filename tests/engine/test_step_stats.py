"""StepStats: the counts of each step, how many were under way, and phases one after another on one clock."""

import itertools

import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_stats import StepStats
from support_engine import EngineHarness, make_request


def test_each_step_has_stats() -> None:
    step_stats: list[StepStats] = []
    harness = EngineHarness(
        FakeConfig(vocab_size=200, num_blocks=64, block_size=4), max_batch_tokens=8, max_running_requests=1
    )
    harness.loop.on_step = step_stats.append
    harness.submit(make_request("a", 10, 2), make_request("b", [3], 1))
    harness.drain()
    assert [stats.step_id for stats in step_stats] == list(range(len(step_stats)))
    assert [stats.num_tokens for stats in step_stats] == [8, 2, 1, 1]
    assert [stats.num_prefill_tokens for stats in step_stats] == [8, 2, 0, 0]
    assert [stats.num_outputs for stats in step_stats] == [0, 1, 1, 1]
    assert [(stats.running, stats.waiting) for stats in step_stats] == [(1, 1), (1, 1), (0, 1), (0, 0)]
    assert all(stats.in_flight == 1 and stats.schedule_ms >= 0 and stats.collect_ms >= 0 for stats in step_stats)
    assert step_stats[-1].free_blocks == 64


def test_a_step_says_how_many_were_on_their_way_when_its_result_came() -> None:
    step_stats: list[StepStats] = []
    harness = EngineHarness(FakeConfig(vocab_size=200, num_blocks=64, block_size=4), overlap=True)
    harness.loop.on_step = step_stats.append
    harness.submit(make_request("a", 3, 5))
    harness.drain()
    harness.close()
    assert [stats.in_flight for stats in step_stats] == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_phases_of_all_steps_lie_one_after_another_on_one_clock(overlap: bool) -> None:
    step_stats: list[StepStats] = []
    harness = EngineHarness(
        FakeConfig(vocab_size=200, num_blocks=64, block_size=4), max_batch_tokens=8, overlap=overlap
    )
    harness.loop.on_step = step_stats.append
    harness.submit(make_request("a", 10, 9), make_request("b", [3], 5))
    harness.drain()
    harness.close()
    spans = []
    for stats in step_stats:
        launched = stats.started_ms + stats.schedule_ms + stats.launch_ms
        spans += [(stats.started_ms, launched), (stats.collect_started_ms, stats.ended_ms)]
        assert 0 <= stats.started_ms <= launched <= stats.collect_started_ms <= stats.ended_ms
    spans.sort()
    assert all(first[1] <= second[0] + 1e-6 for first, second in itertools.pairwise(spans))
    assert [stats.started_ms for stats in step_stats] == sorted(stats.started_ms for stats in step_stats)
