"""ThreadedRunner: two launches in flight without a GPU; after a failure the later launch is void."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from chairlift.core.errors import EngineDead
from chairlift.engine.runner.base import Runner, RunnerInfo
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.runner.threaded import ThreadedRunner
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult
from support_engine import EngineHarness, make_request, make_result
from support_process import wait_until


def plan(step_id: int) -> StepPlan:
    none = np.empty(0, np.int32)
    return StepPlan(
        step_id=step_id, released_slots=(), new_sequences=(), slots=none, num_new_tokens=none, start_positions=none,
        new_blocks=np.empty((0, 4), np.int32), input_ids=none, sample_rows=none,
    )  # fmt: skip


class GatedRunner:
    """An inner runner whose steps wait for a gate; the steps in `fails` raise."""

    def __init__(self, fails: dict[int, BaseException] | None = None) -> None:
        self.fails = fails or {}
        self.gate = threading.Semaphore(0)
        self.launched: list[int] = []
        self.stops = 0
        self.warmed_by: list[int] = []

    def start(self) -> RunnerInfo:
        return RunnerInfo(vocab_size=9, max_model_len=9, num_blocks=9, block_size=9)

    def launch(self, plan: StepPlan) -> None:
        self.gate.acquire()
        self.launched.append(plan.step_id)
        if plan.step_id in self.fails:
            raise self.fails[plan.step_id]
        self.last = plan

    def collect(self) -> StepResult:
        return make_result(self.last)

    def warmup(self) -> None:
        self.warmed_by.append(threading.get_ident())
        if len(self.warmed_by) == 2:
            raise MemoryError("too large")

    def stop(self) -> None:
        self.stops += 1


def started(inner: GatedRunner) -> Iterator[ThreadedRunner]:
    runner = ThreadedRunner(inner)
    runner.start()
    yield runner
    inner.gate.release(100)
    runner.stop()


@pytest.fixture
def inner() -> GatedRunner:
    return GatedRunner({3: ValueError("boom"), 9: SystemExit(2), 11: EngineDead("gone")})


@pytest.fixture
def runner(inner: GatedRunner) -> Iterator[ThreadedRunner]:
    yield from started(inner)


def test_two_launches_return_before_either_is_done(inner: GatedRunner, runner: ThreadedRunner) -> None:
    runner.launch(plan(0))
    runner.launch(plan(1))
    assert inner.launched == []
    inner.gate.release(2)
    assert [runner.collect().step_id, runner.collect().step_id] == [0, 1]
    assert inner.launched == [0, 1]


def test_the_thread_that_computes_warms_up_and_goes_on_after_a_failure_there(
    inner: GatedRunner, runner: ThreadedRunner
) -> None:
    inner.gate.release(9)
    runner.warmup()
    assert runner._thread is not None and inner.warmed_by == [runner._thread.ident]
    with pytest.raises(MemoryError, match="too large"):
        runner.warmup()
    runner.launch(plan(0))
    assert runner.collect().step_id == 0
    runner.warmup()
    assert len(inner.warmed_by) == 3


def test_a_launch_after_a_failure_is_void(inner: GatedRunner, runner: ThreadedRunner) -> None:
    """It never reaches the inner runner, and the step after it runs as usual."""
    runner.launch(plan(3))
    runner.launch(plan(4))
    inner.gate.release(2)
    with pytest.raises(ValueError, match="boom"):
        runner.collect()
    runner.launch(plan(5))
    assert runner.collect().step_id == 5 and inner.launched == [3, 5]


def test_a_launch_between_the_failure_and_its_collecting_is_void_too(
    inner: GatedRunner, runner: ThreadedRunner
) -> None:
    inner.gate.release(9)
    runner.launch(plan(3))
    while not runner._results.qsize():
        threading.Event().wait(0.001)
    runner.launch(plan(4))
    with pytest.raises(ValueError, match="boom"):
        runner.collect()
    runner.launch(plan(5))
    assert runner.collect().step_id == 5 and inner.launched == [3, 5]


def test_a_second_failure_is_raised_as_well(inner: GatedRunner, runner: ThreadedRunner) -> None:
    inner.gate.release(9)
    for _ in range(2):
        runner.launch(plan(3))
        with pytest.raises(ValueError, match="boom"):
            runner.collect()


def test_an_exit_in_the_thread_ends_the_wait(inner: GatedRunner, runner: ThreadedRunner) -> None:
    inner.gate.release(9)
    runner.launch(plan(9))
    with pytest.raises(SystemExit):
        runner.collect()


def test_a_dead_runner_says_so_through_the_thread(inner: GatedRunner, runner: ThreadedRunner) -> None:
    inner.gate.release(9)
    runner.launch(plan(11))
    with pytest.raises(EngineDead, match="gone"):
        runner.collect()


def test_stopping_ends_the_thread_and_may_be_done_twice_or_before_the_start() -> None:
    inner = GatedRunner()
    runner = ThreadedRunner(inner)
    runner.stop()
    runner.start()
    thread = runner._thread
    assert thread is not None and thread.is_alive() and thread.daemon
    runner.stop()
    runner.stop()
    assert not thread.is_alive() and inner.stops == 3


def test_an_engine_with_overlap_gives_the_same_tokens_with_two_in_flight() -> None:
    fake = FakeConfig(vocab_size=200, num_blocks=30, block_size=4, windows=(None, 6))
    outputs = []
    for overlap in (False, True):
        harness = EngineHarness(fake, overlap=overlap, max_batch_tokens=16, max_chunk_tokens=4)
        harness.submit(*[make_request(str(number), [5] * 9 + [number], 20, stop=(7, 8, 9)) for number in range(8)])
        harness.drain()
        harness.check_outputs(no_faults=True)
        assert harness.scheduler.counters.max_in_flight == 1 + overlap
        outputs.append(harness.tokens)
        harness.close()
    assert outputs[0] == outputs[1]


def test_after_a_failure_in_flight_the_later_launch_leaves_no_trace() -> None:
    """Its plan is void, its sequences are sent anew, and no sequence reads its blocks."""

    def hook(plan: StepPlan, stage: str) -> None:
        calls.append((plan.step_id, stage))
        if (plan.step_id, stage) == (2, "collect"):
            raise RuntimeError("in flight")

    calls: list[tuple[int, str]] = []
    harness = EngineHarness(FakeConfig(vocab_size=200, num_blocks=64, block_size=4), overlap=True, hook=hook)
    harness.submit(make_request("a", [1, 2], 9), make_request("b", [3, 4], 9))
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert (2, "launch") in calls and (3, "launch") not in calls, "step 3 was launched behind the failure"
    assert harness.scheduler.counters.max_in_flight == 2 and harness.scheduler.counters.failed_steps == 1
    harness.close()


def test_blocks_are_released_by_an_inner_runner_that_can() -> None:
    assert ThreadedRunner(FakeRunner(FakeConfig(num_blocks=10))).release_blocks(4) == 6
    assert ThreadedRunner(cast("Runner", object())).release_blocks(4) == 0


def test_steps_go_on_in_a_new_thread_and_an_end_that_was_not_read_stops_none(
    inner: GatedRunner, runner: ThreadedRunner
) -> None:  # fmt: skip
    renewed: list[threading.Thread] = []
    inner.gate.release(3)
    runner.launch(plan(0))
    runner.collect()
    before = engine_runner_threads()
    inner.renew_threads = lambda: renewed.append(threading.current_thread())  # type: ignore[attr-defined]
    runner.renew_threads()
    assert renewed == [threading.current_thread()]
    wait_until(lambda: len(engine_runner_threads()) == len(before))  # the old one ends in a moment
    assert engine_runner_threads() != before
    masked = replace(plan(1), masked_samples=np.zeros(1, np.int32))
    inner.supply_masks = lambda *_: None  # type: ignore[attr-defined]
    runner.launch(masked)
    runner.supply_masks(1, cast("TokenMasks", None))
    assert runner.collect().step_id == 1
    ThreadedRunner(cast("Runner", object())).renew_threads()


def test_a_thread_that_cannot_be_started_leaves_the_old_one(
    inner: GatedRunner, runner: ThreadedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            runner.renew_threads()
    inner.gate.release()
    runner.launch(plan(0))
    assert runner.collect().step_id == 0


def engine_runner_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "chairlift-runner"}


def test_the_memory_of_the_inner_runners_device_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ThreadedRunner(FakeRunner(FakeConfig()))
    assert runner.device_memory() == (0, 0)
    monkeypatch.setattr(FakeRunner, "device_memory", lambda _: (3, 4), raising=False)
    assert runner.device_memory() == (3, 4)


def test_a_failure_between_steps_is_that_of_an_inner_runner_that_has_one() -> None:
    class Fails:
        def on_failure(self, callback: Callable[[EngineDead], None]) -> None:
            callback(EngineDead("a rank is lost"))

    failures: list[EngineDead] = []
    ThreadedRunner(cast("Runner", Fails())).on_failure(failures.append)
    ThreadedRunner(cast("Runner", object())).on_failure(failures.append)
    assert [str(each) for each in failures] == ["a rank is lost"]
