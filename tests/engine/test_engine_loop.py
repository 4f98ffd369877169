"""EngineLoop: expire, schedule, launch, collect, commit; failures roll back and integrity is checked."""

import logging
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ConfigError, DuplicateRequestId, EngineDead, ForwardFailed, QueueFull, RequestTimeout
from chairlift.core.load_report import ReplicaState
from chairlift.engine import engine_loop
from chairlift.engine.config import SchedulerConfig, SpeculationConfig
from chairlift.engine.drafters.registry import METHODS
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.runner.fake import NEVER_WRITTEN, FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.step_stats import StepStats
from support_drafters import ExpectedDrafter
from support_engine import EngineHarness, NthCall, make_request, make_scheduler, submit
from support_shares import for_each

FAKE = FakeConfig(vocab_size=200, num_blocks=64, block_size=4)


def test_a_request_goes_in_and_its_tokens_come_out() -> None:
    harness = EngineHarness(FAKE)
    harness.submit(make_request("a", 10, 5))
    outputs_by_step = [harness.step() for _ in range(5)]
    assert [len(outputs) for outputs in outputs_by_step] == [1] * 5
    assert [outputs[0].finish_reason for outputs in outputs_by_step] == [None] * 4 + [FinishReason.LENGTH]
    assert harness.loop.is_idle and harness.step() == []
    harness.check_outputs(no_faults=True)


def test_after_a_burst_the_memory_is_returned_and_prompts_that_were_used_last_are_still_cached() -> None:
    harness = EngineHarness(replace(FAKE, max_cached_blocks=6))
    harness.submit(*(make_request(f"burst{number}", [number] * 8, 5) for number in range(12)))
    harness.submit(make_request("last", [*range(20)], 5))
    harness.drain()
    pool, runner = harness.scheduler.cache.pool, harness.runner
    assert pool.num_used > 30
    written = [bool((runner._memory[:, block] != NEVER_WRITTEN).any()) for block in range(64)]
    assert sum(written) > 30
    while harness.loop.trim_cache() is not None:
        harness.clock.advance(60.0)
    assert pool.num_used == 6 and (runner._memory[:, 6:] == NEVER_WRITTEN).all()
    harness.submit(make_request("again", [*range(20)], 5))
    harness.drain()
    assert harness.finals["again"].usage is not None and harness.finals["again"].usage.cached_tokens >= 16
    harness.check_outputs(no_faults=True)


class RefusingRunner(FakeRunner):
    """A runner whose tokens would depend on drafts."""

    def start(self) -> RunnerInfo:
        return replace(super().start(), no_drafts_reason="steps differ")


@for_each(
    ("method", "refuses", "line", "warnings"),
    [
        ("none", False, "off: the method is none", []),
        ("none", True, "off: the method is none", []),
        ("guess", False, "guess: up to 3 drafts of a sequence in a step", []),
        ("guess", True, "off: steps differ", ["speculative decoding by method guess is off: steps differ"]),
        ("auto", True, "off: steps differ", []),
    ],
)
def test_the_startup_report_says_whether_tokens_are_guessed(
    method: str, refuses: bool, line: str, warnings: list[str],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.clear()
    monkeypatch.setitem(METHODS, "guess", lambda config: (ExpectedDrafter(Random(0), lambda sequence: [], 200, 0.0),))
    config = SchedulerConfig(speculation=SpeculationConfig(method=method, num_speculative_tokens=3))
    loop = EngineLoop((RefusingRunner if refuses else FakeRunner)(FAKE), config)
    info = loop.start()
    assert info == loop.info and info.startup_report == (("speculative decoding", line),)
    assert caplog.messages == warnings
    loop.stop()


def test_threads_are_renewed_between_two_steps_where_the_runner_has_some() -> None:
    harness, renewed = EngineHarness(FAKE), []
    harness.loop.renew_threads()
    harness.runner.renew_threads = lambda: renewed.append(True)  # type: ignore[attr-defined]
    harness.submit(make_request("a", 10, 5))
    harness.step()
    harness.loop.collect_in_flight()
    harness.loop.renew_threads()
    assert renewed == [True]
    harness.drain()
    harness.check_outputs(no_faults=True)


def test_a_rejection_comes_back_as_the_last_output() -> None:
    harness = EngineHarness(FAKE, max_queue_size=1)
    harness.submit(make_request("a", 10, 5), make_request("b", 10, 5))
    assert isinstance(harness.finals["b"].error, QueueFull)
    (rejection,) = submit(harness.loop, make_request("a", 10, 5))
    assert isinstance(rejection.error, DuplicateRequestId)
    assert rejection.usage is not None and rejection.usage.prompt_tokens == 10
    harness.drain()


def test_the_time_of_a_request_is_up_between_two_steps() -> None:
    harness = EngineHarness(FAKE)
    harness.submit(make_request("a", 10, 50, timeout=1.0))
    harness.step(2)
    harness.clock.advance(1.0)
    [output] = harness.step()
    assert isinstance(output.error, RequestTimeout) and len(harness.tokens["a"]) == 2


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stage", ["launch", "collect"])
def test_a_step_that_fails_once_costs_no_token(stage: str, overlap: bool) -> None:
    def hook(plan: StepPlan, at: str) -> None:
        if (plan.step_id, at) == (3, stage):
            raise RuntimeError("once")

    harness = EngineHarness(FAKE, hook=hook, overlap=overlap)
    harness.submit(make_request("a", [1, 2], 9), make_request("b", [3, 4], 9), make_request("c", [5, 6], 9))
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert harness.scheduler.counters.failed_steps == 1
    harness.close()


def test_a_row_that_fails_alone_ends_with_the_error_of_the_model() -> None:
    def hook(plan: StepPlan, at: str) -> None:
        raise RuntimeError("no memory")

    harness = EngineHarness(FAKE, hook=hook)
    harness.submit(make_request("a", 3))
    [output] = harness.step()
    assert isinstance(output.error, ForwardFailed) and "no memory" in output.error.message


def test_a_dead_runner_is_not_tried_again() -> None:
    def hook(plan: StepPlan, at: str) -> None:
        raise EngineDead("the device is gone")

    for overlap in (False, True):
        harness = EngineHarness(FAKE, hook=hook, overlap=overlap)
        harness.submit(make_request("a", 3))
        with pytest.raises(EngineDead, match="the device is gone"):
            harness.step(2)
        assert harness.loop.step_started_at is None
        harness.close()


def test_overlap_keeps_two_launches_in_flight() -> None:
    harness = EngineHarness(FAKE, overlap=True)
    harness.submit(make_request("a", 10, 20), make_request("b", [4, 5], 20))
    harness.step()
    assert len(harness.scheduler.in_flight_steps) == 1
    harness.step()
    assert len(harness.scheduler.in_flight_steps) == 1 and harness.scheduler.counters.max_in_flight == 2
    harness.drain()
    harness.check_outputs(no_faults=True)
    harness.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_only_steps_that_were_committed_are_shown(overlap: bool) -> None:
    step_stats: list[StepStats] = []
    fails = NthCall(4)
    harness = EngineHarness(FAKE, overlap=overlap, hook=lambda plan, at: fails())
    harness.loop.on_step = step_stats.append
    harness.submit(make_request("a", 3, 6), make_request("b", 5, 6))
    harness.drain()
    assert harness.scheduler.counters.failed_steps == 1
    assert sum(stats.num_outputs for stats in step_stats) == 12
    assert harness.loop._step_times == {}
    harness.close()


def test_an_on_step_callback_that_raises_hurts_no_request(caplog: pytest.LogCaptureFixture) -> None:
    harness = EngineHarness(FAKE)
    second = NthCall(2)
    harness.loop.on_step = lambda stats: second()
    harness.submit(make_request("a", 3, 6))
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert caplog.text.count("the on_step callback raised") == 1


@pytest.mark.parametrize("overlap", [False, True])
def test_the_memory_of_a_device_is_read_once_in_a_while_for_the_stats_of_each_step(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[int] = []

    def device_memory(runner: FakeRunner) -> tuple[int, int]:
        readings.append(len(readings))
        return 100 + readings[-1], 200 + readings[-1]

    monkeypatch.setattr(FakeRunner, "device_memory", device_memory, raising=False)
    step_stats: list[StepStats] = []
    for seconds, all_read in ((1e9, False), (0.0, True)):
        monkeypatch.setattr(engine_loop, "MEMORY_SECONDS", seconds)
        readings.clear()
        step_stats.clear()
        harness = EngineHarness(FAKE, overlap=overlap)
        harness.loop.on_step = step_stats.append
        harness.submit(make_request("a", 3, 6))
        harness.drain()
        assert len(readings) == (len(step_stats) if all_read else 1)
        expected = [(100 + n * all_read, 200 + n * all_read) for n in range(len(step_stats))]
        assert [(each.device_tensor_bytes, each.device_reserved_bytes) for each in step_stats] == expected
        harness.close()


def test_integrity_errors_are_logged_and_returned(caplog: pytest.LogCaptureFixture) -> None:
    harness = EngineHarness(FAKE)
    harness.cache.pool.allocate(1)
    with caplog.at_level(logging.ERROR):
        assert harness.loop.check_integrity() == ["block 0 has 1 references, tables hold it 0 times"]
    assert "integrity: block 0" in caplog.text


def test_the_load_report_counts_requests_blocks_and_tokens() -> None:
    harness = EngineHarness(FAKE, max_running_requests=1)
    harness.submit(make_request("a", 10, 5), make_request("b", 7, 5))
    harness.step()
    load = harness.loop.load()
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


def test_a_loop_runs_the_sequences_of_a_scheduler_that_existed_before_it() -> None:
    scheduler = make_scheduler(num_blocks=64, block_size=4)
    scheduler.add_request(make_request("a", 5, 3), 0.0)
    plan = scheduler.schedule(0.0)
    loop = EngineLoop(FakeRunner(FAKE), scheduler.config, clock=FakeClock())
    loop.start(scheduler)
    assert loop.scheduler is scheduler and loop.limits is scheduler.limits and plan is not None
    assert loop.launch(plan, 0.0) == []
    outputs = [*loop.collect(), *loop.step(), *loop.step()]
    assert [output.finish_reason for output in outputs] == [None, None, FinishReason.LENGTH] and loop.is_idle


@pytest.mark.parametrize("other", [{"num_blocks": 65}, {"block_size": 8}, {"windows": (16,)}])
def test_a_scheduler_whose_cache_has_other_blocks_than_the_runner_is_refused(other: dict[str, Any]) -> None:
    loop = EngineLoop(FakeRunner(FAKE), SchedulerConfig(), clock=FakeClock())
    with pytest.raises(ConfigError, match="make them equal"):
        loop.start(make_scheduler(**{"num_blocks": 64, "block_size": 4, **other}))


@for_each("other", [{}, {"num_state_checkpoints": 3}])
def test_a_scheduler_whose_cache_has_other_checkpoints_than_the_runner_is_refused(other: dict[str, Any]) -> None:
    runner = FakeRunner(replace(FAKE, has_state=True, num_state_checkpoints=2))
    loop = EngineLoop(runner, SchedulerConfig(), clock=FakeClock())
    with pytest.raises(ConfigError, match=r"checkpoints of states .* make them equal"):
        loop.start(make_scheduler(num_blocks=64, block_size=4, **other))


@for_each("overlap", [False, True])
def test_a_model_whose_layers_all_keep_a_state_needs_no_blocks(overlap: bool) -> None:
    fake = replace(FAKE, windows=(), num_blocks=1, has_state=True, num_state_checkpoints=9)
    harness = EngineHarness(fake, overlap=overlap, max_batch_tokens=32, tune_limits=True)
    harness.submit(*(make_request(str(number), [*range(1, 30), number], 20, n=2) for number in range(4)))
    harness.drain()
    harness.submit(make_request("again", [*range(1, 30), 2, *harness.tokens["2"], 9], 8))
    harness.drain()
    harness.check_outputs(no_faults=True)
    usage = harness.finals["again"].usage
    assert usage is not None and usage.cached_tokens == 48 and harness.scheduler.counters.preemptions == 0
    harness.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_fail_all_ends_requests_in_flight_and_waiting_ones(overlap: bool) -> None:
    harness = EngineHarness(FAKE, overlap=overlap, max_running_requests=2)
    for name in "abc":
        submit(harness.loop, make_request(name, 5, 9))
    harness.loop.step()
    outputs = harness.loop.fail_all(ForwardFailed("all of them"))
    assert [output.request_id for output in outputs] == ["a", "b", "c"] and all(each.is_final for each in outputs)
    assert {str(each.error) for each in outputs} == {str(ForwardFailed("all of them"))}
    while not harness.loop.is_idle:
        assert harness.loop.step() == []
    assert harness.loop.check_integrity() == [] and harness.loop.scheduler.cache.counts().held == 0
    harness.loop.stop()


def test_the_cache_is_rooted_in_the_runners_model() -> None:
    """Pitfall 12: two models never share a block name."""
    roots = set()
    for seed in (1, 2):
        harness = EngineHarness(FakeConfig(vocab_size=200, num_blocks=64, seed=seed))
        harness.submit(make_request("a", 3))
        roots.add(harness.sequence("a").hash_root)
    assert len(roots) == 2


@pytest.mark.parametrize(("max_prefill_tokens", "longest"), [(None, 8), (20, 20)])
def test_a_runner_gets_chunks_of_the_size_it_likes_unless_another_is_asked_for(
    max_prefill_tokens: int | None, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, steps = FakeRunner(FAKE), list[StepStats]()
    start = runner.start
    monkeypatch.setattr(runner, "start", lambda: replace(start(), preferred_prefill_tokens=8))
    loop = EngineLoop(
        runner, SchedulerConfig(max_prefill_tokens=max_prefill_tokens), clock=FakeClock(), on_step=steps.append
    )
    loop.start()
    assert not submit(loop, make_request("a", 41))
    while not loop.is_idle:
        loop.step()
    assert max(step.num_tokens for step in steps) == longest


def test_a_failure_of_the_runner_between_two_steps_is_raised_in_the_engines_thread() -> None:
    callbacks: list[Callable[[EngineDead], None]] = []
    posted: list[Callable[[], None]] = []

    class Fails(FakeRunner):
        def on_failure(self, callback: Callable[[EngineDead], None]) -> None:
            callbacks.append(callback)

    for overlap in (False, True):
        EngineLoop(Fails(FakeConfig()), SchedulerConfig(overlap=overlap)).watch_runner(posted.append)
    EngineLoop(FakeRunner(FakeConfig()), SchedulerConfig()).watch_runner(posted.append)
    assert len(callbacks) == 2 and posted == []
    callbacks[1](EngineDead("a rank is lost"))
    with pytest.raises(EngineDead, match="a rank is lost"):
        posted[0]()


def drafting_loop(runner: FakeRunner, draft_runner: FakeRunner | None) -> EngineLoop:
    speculation = SpeculationConfig(method="draft_model", model="draft", num_speculative_tokens=4)
    return EngineLoop(runner, SchedulerConfig(speculation=speculation), draft_runner=draft_runner)


def test_a_draft_model_starts_before_the_model_and_stops_with_it() -> None:
    runner, draft_runner = FakeRunner(FAKE), FakeRunner(FAKE)
    started: list[bool] = []
    start = runner.start

    def record_start() -> RunnerInfo:
        started.append(draft_runner.started)
        return start()

    runner.start = record_start  # type: ignore[method-assign]
    loop = drafting_loop(runner, draft_runner)
    loop.start()
    submit(loop, make_request("a", 10, 21))
    while not loop.is_idle:
        loop.step()
    assert loop.scheduler.counters.confirmed_draft_tokens == 16 and loop.check_integrity() == []
    assert started == [True] and loop.warmup() >= 0 and draft_runner.warmups == 1
    loop.stop()
    assert runner.stopped and draft_runner.stopped


def test_a_draft_model_that_cannot_be_used_is_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match="needs an engine that loads both models"):
        drafting_loop(FakeRunner(FAKE), None).start()
    loop = drafting_loop(FakeRunner(FAKE), FakeRunner(replace(FAKE, has_state=True)))
    with pytest.raises(ConfigError, match="the draft model has layers that keep a state"):
        loop.start()


def test_where_drafts_could_change_tokens_the_draft_model_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    runner, draft_runner = FakeRunner(FAKE), FakeRunner(FAKE)
    info = replace(runner.start(), no_drafts_reason="rounding depends on the batch")
    runner.start = lambda: info  # type: ignore[method-assign]
    loop = drafting_loop(runner, draft_runner)
    with caplog.at_level(logging.WARNING):
        loop.start()
    assert draft_runner.stopped
    assert [record.message for record in caplog.records] == [
        "speculative decoding by method draft_model is off: rounding depends on the batch"
    ]
    submit(loop, make_request("a", 10, 20))
    while not loop.is_idle:
        loop.step()
    assert not loop.scheduler.counters.draft_tokens


def test_a_draft_model_of_another_method_is_not_started() -> None:
    draft_runner = FakeRunner(FAKE)
    loop = EngineLoop(FakeRunner(FAKE), SchedulerConfig(), draft_runner=draft_runner)
    loop.start()
    assert not draft_runner.started
