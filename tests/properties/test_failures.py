"""The n-th allocation, launch, collect or row fails, for every n that a fixed ride reaches; then all is proved."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from chairlift.core.errors import ChairliftError, ForwardFailed, OutOfBlocks, RequestFailed, SamplingFailed
from chairlift.core.request import FinishReason
from chairlift.engine.kv.free_block_list import BlockId
from chairlift.engine.runner.fake import FakeConfig
from chairlift.engine.step_plan import StepPlan
from support_engine import Hook, Lift, NthCall, ask

MODES = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
GROUPS = pytest.mark.parametrize("windows", [(None,), (None, 6)], ids=["full", "windowed"])


def the_ride(
    overlap: bool, windows: tuple[int | None, ...], *, hook: Hook | None = None,
    row_faults: Callable[[StepPlan], list[tuple[int, ChairliftError]]] | None = None,
    prepare: Callable[[Lift], None] = lambda lift: None,
) -> Lift:  # fmt: skip
    """Six requests with a common prefix through a pool that holds about two of them."""
    fake = FakeConfig(
        vocab_size=200, max_model_len=64, num_blocks=13 if len(windows) == 1 else 18, block_size=4, windows=windows
    )
    lift = Lift(
        fake, hook=hook, row_faults=row_faults, overlap=overlap, max_batch_tokens=12, max_running_requests=4,
        max_prefill_tokens=9, prefix_wait_steps=4,
    )  # fmt: skip
    prepare(lift)
    try:
        for name in range(6):
            lift.submit(ask(str(name), [*range(1, 10), 20 + name, 30 + name][: 11 - name % 3], 22 + name))
            lift.step()
        lift.abort("4")
        lift.drain()
    finally:
        lift.close()
    return lift


@MODES
@GROUPS
def test_the_ride_meets_what_it_is_for(overlap: bool, windows: tuple[int | None, ...]) -> None:
    counters = the_ride(overlap, windows).scheduler.counters
    assert counters.preemptions and counters.cached_tokens
    assert counters.max_in_flight == (2 if overlap else 1)


@MODES
@GROUPS
def test_every_allocation_may_fail_once(overlap: bool, windows: tuple[int | None, ...]) -> None:
    """OutOfBlocks though blocks are there: nobody leaks, and whoever ends with it was alone on board."""
    nth = 0
    while True:
        call = NthCall(nth := nth + 1)

        def prepare(lift: Lift, call: NthCall = call) -> None:
            lift.audit.lenient = True
            take = lift.cache.pool.allocate

            def failing(count: int) -> list[BlockId]:
                with suppress(RuntimeError):
                    call()
                    return take(count)
                raise OutOfBlocks(free=0, total=lift.cache.pool.total, needed=count)

            lift.cache.pool.allocate = failing  # type: ignore[method-assign]

        lift = the_ride(overlap, windows, prepare=prepare)
        failed = [final.error for final in lift.finals.values() if final.finish_reason is FinishReason.ERROR]
        assert len(failed) <= 1 and all(isinstance(error, OutOfBlocks) for error in failed)
        if not call.reached:
            break
    assert nth > 30


@pytest.mark.parametrize("stage", ["launch", "collect"])
@MODES
@GROUPS
def test_every_step_may_fail_once(stage: str, overlap: bool, windows: tuple[int | None, ...]) -> None:
    """A step that fails once costs nobody anything, unless its only request stood there alone."""
    nth = 0
    while True:
        call = NthCall(nth := nth + 1)
        alone = []

        def hook(plan: StepPlan, at: str, call: NthCall = call, alone: list[bool] = alone) -> None:
            if at == stage:
                try:
                    call()
                except RuntimeError:
                    alone.append(plan.num_rows == 1)
                    raise

        lift = the_ride(overlap, windows, hook=hook)
        failed = [final.error for final in lift.finals.values() if final.finish_reason is FinishReason.ERROR]
        assert len(failed) == sum(alone) and all(isinstance(error, ForwardFailed) for error in failed)
        assert lift.scheduler.counters.failed_steps == call.reached
        if not call.reached:
            break
    assert nth > 30


@MODES
@GROUPS
def test_every_row_may_fail_once(overlap: bool, windows: tuple[int | None, ...]) -> None:
    """The n-th row of the ride fails alone; exactly its request ends, unless it had ended already."""
    nth = 0
    while True:
        call = NthCall(nth := nth + 1)

        def row_faults(plan: StepPlan, call: NthCall = call) -> list[tuple[int, ChairliftError]]:
            faults: list[tuple[int, ChairliftError]] = []
            for row in range(plan.num_rows):
                try:
                    call()
                except RuntimeError:
                    faults.append((row, SamplingFailed("it is its turn")))
            return faults

        lift = the_ride(overlap, windows, row_faults=row_faults)
        failed = [final.error for final in lift.finals.values() if final.finish_reason is FinishReason.ERROR]
        assert len(failed) <= call.reached and all(isinstance(error, RequestFailed) for error in failed)
        if not call.reached:
            break
    assert nth > 60


@MODES
@GROUPS
def test_every_second_step_may_fail(overlap: bool, windows: tuple[int | None, ...]) -> None:
    """Failures without end: requests are lost one by one, and nothing else is."""
    call = NthCall(0)

    def hook(plan: StepPlan, at: str) -> None:
        call()
        if at == "launch" and plan.step_id % 2:
            raise RuntimeError("every second step fails")

    lift = the_ride(overlap, windows, hook=hook)
    assert lift.scheduler.counters.failed_steps > 3


@MODES
@GROUPS
def test_a_runner_that_always_fails_ends_everybody_with_an_error(overlap: bool, windows: tuple[int, ...]) -> None:
    def hook(plan: StepPlan, at: str) -> None:
        raise MemoryError("no memory")

    lift = the_ride(overlap, windows, hook=hook)
    reasons = [final.finish_reason for final in lift.finals.values()]
    assert set(reasons) <= {FinishReason.ERROR, FinishReason.ABORT} and reasons.count(FinishReason.ERROR) >= 5
