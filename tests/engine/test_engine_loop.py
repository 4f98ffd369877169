"""EngineLoop: expire, schedule, launch, collect, commit; failures roll back and integrity is checked."""

import logging
from dataclasses import replace

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import DuplicateRequestId, EngineDead, ForwardFailed, QueueFull, RequestTimeout
from chairlift.core.load_report import ReplicaState
from chairlift.core.request import FinishReason
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeConfig, FakeRunner
from chairlift.engine.stats import StepStats
from chairlift.engine.step_plan import StepPlan
from support_engine import Lift, NthCall, ask

FAKE = FakeConfig(vocab_size=200, num_blocks=64, block_size=4)


def test_a_request_goes_in_and_its_tokens_come_out() -> None:
    lift = Lift(FAKE)
    lift.submit(ask("a", 10, 5))
    news = [lift.step() for _ in range(5)]
    assert [len(outputs) for outputs in news] == [1] * 5
    assert [outputs[0].finish_reason for outputs in news] == [None] * 4 + [FinishReason.LENGTH]
    assert lift.loop.is_idle and lift.step() == []
    lift.prove(calm=True)


def test_a_refusal_comes_back_as_the_last_output() -> None:
    lift = Lift(FAKE, max_queue_size=1)
    lift.submit(ask("a", 10, 5), ask("b", 10, 5))
    assert isinstance(lift.finals["b"].error, QueueFull)
    (refused,) = lift.loop.submit(ask("a", 10, 5))
    assert isinstance(refused.error, DuplicateRequestId)
    assert refused.usage is not None and refused.usage.prompt_tokens == 10
    lift.drain()


def test_the_time_of_a_request_is_up_between_two_steps() -> None:
    lift = Lift(FAKE)
    lift.submit(ask("a", 10, 50, timeout=1.0))
    lift.step(2)
    lift.clock.advance(1.0)
    [output] = lift.step()
    assert isinstance(output.error, RequestTimeout) and len(lift.tokens["a"]) == 2


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stage", ["launch", "collect"])
def test_a_step_that_fails_once_costs_no_token(stage: str, overlap: bool) -> None:
    def hook(plan: StepPlan, at: str) -> None:
        if (plan.step_id, at) == (3, stage):
            raise RuntimeError("once")

    lift = Lift(FAKE, hook=hook, overlap=overlap)
    lift.submit(ask("a", [1, 2], 9), ask("b", [3, 4], 9), ask("c", [5, 6], 9))
    lift.drain()
    lift.prove(calm=True)
    assert lift.scheduler.counters.failed_steps == 1
    lift.close()


def test_a_row_that_fails_alone_ends_with_the_error_of_the_model() -> None:
    def hook(plan: StepPlan, at: str) -> None:
        raise RuntimeError("no memory")

    lift = Lift(FAKE, hook=hook)
    lift.submit(ask("a", 3))
    [output] = lift.step()
    assert isinstance(output.error, ForwardFailed) and "no memory" in output.error.message


def test_a_dead_runner_is_not_tried_again() -> None:
    def hook(plan: StepPlan, at: str) -> None:
        raise EngineDead("the device is gone")

    for overlap in (False, True):
        lift = Lift(FAKE, hook=hook, overlap=overlap)
        lift.submit(ask("a", 3))
        with pytest.raises(EngineDead, match="the device is gone"):
            lift.step(2)
        assert lift.loop.step_started_at is None
        lift.close()


def test_overlap_keeps_two_launches_in_flight() -> None:
    lift = Lift(FAKE, overlap=True)
    lift.submit(ask("a", 10, 20), ask("b", [4, 5], 20))
    lift.step()
    assert len(lift.scheduler.in_flight_steps) == 1
    lift.step()
    assert len(lift.scheduler.in_flight_steps) == 1 and lift.scheduler.counters.max_in_flight == 2
    lift.drain()
    lift.prove(calm=True)
    lift.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_only_steps_that_were_committed_are_shown(overlap: bool) -> None:
    step_stats: list[StepStats] = []
    fails = NthCall(4)
    lift = Lift(FAKE, overlap=overlap, hook=lambda plan, at: fails())
    lift.loop.on_step = step_stats.append
    lift.submit(ask("a", 3, 6), ask("b", 5, 6))
    lift.drain()
    assert lift.scheduler.counters.failed_steps == 1
    assert sum(stats.num_outputs for stats in step_stats) == 12
    assert lift.loop._began == {}
    lift.close()


def test_an_on_step_callback_that_raises_hurts_no_request(caplog: pytest.LogCaptureFixture) -> None:
    lift = Lift(FAKE)
    second = NthCall(2)
    lift.loop.on_step = lambda stats: second()
    lift.submit(ask("a", 3, 6))
    lift.drain()
    lift.prove(calm=True)
    assert caplog.text.count("the on_step callback raised") == 1


def test_integrity_errors_are_logged_and_returned(caplog: pytest.LogCaptureFixture) -> None:
    lift = Lift(FAKE)
    lift.cache.pool.allocate(1)
    with caplog.at_level(logging.ERROR):
        assert lift.loop.check_integrity() == ["block 0 has 1 references, tables hold it 0 times"]
    assert "integrity: block 0" in caplog.text


def test_load_tells_what_the_engine_does() -> None:
    lift = Lift(FAKE, max_running_requests=1)
    lift.submit(ask("a", 10, 5), ask("b", 7, 5))
    lift.step()
    load = lift.loop.load()
    assert load.state is ReplicaState.READY
    assert (load.waiting_requests, load.waiting_tokens, load.running_requests) == (1, 7, 1)
    assert (load.total_blocks, load.free_blocks, load.steps, load.output_tokens) == (64, 61, 1, 1)


def test_the_runner_is_stopped_with_the_loop() -> None:
    for overlap in (False, True):
        runner = FakeRunner(FAKE)
        loop = EngineLoop(runner, SchedulerConfig(overlap=overlap), clock=FakeClock())
        assert loop.start().num_blocks == 64 and runner.started
        loop.stop()
        loop.stop()
        assert runner.stopped


def test_the_cache_is_rooted_in_the_runners_model() -> None:
    """Pitfall 12: two models never share a block name."""
    roots = set()
    for seed in (1, 2):
        lift = Lift(FakeConfig(vocab_size=200, num_blocks=64, seed=seed))
        lift.submit(ask("a", 3))
        roots.add(lift.sequence("a").hash_root)
    assert len(roots) == 2


@pytest.mark.parametrize(("asked", "longest"), [(None, 8), (20, 20)])
def test_a_runner_gets_chunks_of_the_size_it_likes_unless_another_is_asked_for(
    asked: int | None, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, steps = FakeRunner(FAKE), list[StepStats]()
    start = runner.start
    monkeypatch.setattr(runner, "start", lambda: replace(start(), preferred_prefill_tokens=8))
    loop = EngineLoop(runner, SchedulerConfig(max_prefill_tokens=asked), clock=FakeClock(), on_step=steps.append)
    loop.start()
    assert not loop.submit(ask("a", 41))
    while not loop.is_idle:
        loop.step()
    assert max(step.num_tokens for step in steps) == longest
