"""The n-th allocation, launch, collect or row fails; outputs are checked.

`make test-all` tries every n that a fixed scenario reaches, `make test` each fourth launch, collect and allocation and
each ninth row.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ChairliftError, ForwardFailed, OutOfBlocks, RequestFailed, SamplingFailed
from chairlift.engine.kv.free_block_list import BlockId
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_plan import StepPlan
from support_engine import EngineHarness, Hook, NthCall, make_request
from support_shares import FULL

MODES = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
GROUPS = pytest.mark.parametrize("windows", [(None,), (None, 6)], ids=["full", "windowed"])


def failing_calls(share: int, at_least: int) -> Iterator[NthCall]:
    """Yield calls that fail at n = 1, 2, 3 and so on, or at one n of each `share`, until a run has no such call."""
    nth = 1
    while True:
        yield (call := NthCall(nth))
        if not call.was_reached:
            break
        nth += 1 if FULL else share
    assert nth > at_least


def run_scenario(
    overlap: bool, windows: tuple[int | None, ...], *, hook: Hook | None = None,
    row_errors: Callable[[StepPlan], list[tuple[int, ChairliftError]]] | None = None,
    prepare: Callable[[EngineHarness], None] = lambda harness: None, num_state_checkpoints: int | None = None,
) -> EngineHarness:  # fmt: skip
    """Run six requests with a common prefix in a pool that holds about two of them; with checkpoints on a hybrid."""
    fake = FakeConfig(
        vocab_size=200, max_model_len=64, num_blocks=13 if len(windows) == 1 else 18, block_size=4, windows=windows,
        has_state=num_state_checkpoints is not None, num_state_checkpoints=num_state_checkpoints or 0,
    )  # fmt: skip
    harness = EngineHarness(
        fake, hook=hook, row_errors=row_errors, overlap=overlap, max_batch_tokens=12, max_running_requests=4,
        max_prefill_tokens=9, prefix_wait_steps=4,
    )  # fmt: skip
    prepare(harness)
    try:
        for name in range(6):
            harness.submit(make_request(str(name), [*range(1, 10), 20 + name, 30 + name][: 11 - name % 3], 22 + name))
            harness.step()
        harness.abort("4")
        harness.drain()
    finally:
        harness.close()
    return harness


@MODES
@GROUPS
def test_the_scenario_has_preemptions_and_cache_hits(overlap: bool, windows: tuple[int | None, ...]) -> None:
    counters = run_scenario(overlap, windows).scheduler.counters
    assert counters.preemptions and counters.cached_tokens
    assert counters.max_in_flight == (2 if overlap else 1)


@pytest.mark.share(1)
@MODES
@GROUPS
def test_every_allocation_may_fail_once(overlap: bool, windows: tuple[int | None, ...]) -> None:
    """OutOfBlocks although blocks are free: no block leaks, and a request that fails was the only running one."""
    for call in failing_calls(4, at_least=30):

        def prepare(harness: EngineHarness, call: NthCall = call) -> None:
            harness.audit.allocations_may_fail = True
            take = harness.cache.pool.allocate

            def failing(count: int) -> list[BlockId]:
                with suppress(RuntimeError):
                    call()
                    return take(count)
                raise OutOfBlocks(free=0, total=harness.cache.pool.total, needed=count)

            harness.cache.pool.allocate = failing  # type: ignore[method-assign]

        harness = run_scenario(overlap, windows, prepare=prepare)
        failed = [final.error for final in harness.finals.values() if final.finish_reason is FinishReason.ERROR]
        assert len(failed) <= 1 and all(isinstance(error, OutOfBlocks) for error in failed)


@pytest.mark.share(2)
@pytest.mark.parametrize("stage", ["launch", "collect"])
@MODES
@GROUPS
def test_every_step_may_fail_once(stage: str, overlap: bool, windows: tuple[int | None, ...]) -> None:
    """A step that fails once fails no request, unless it has only one row."""
    for call in failing_calls(4, at_least=30):
        alone = []

        def hook(plan: StepPlan, at: str, call: NthCall = call, alone: list[bool] = alone) -> None:
            if at == stage:
                try:
                    call()
                except RuntimeError:
                    alone.append(plan.num_rows == 1)
                    raise

        harness = run_scenario(overlap, windows, hook=hook)
        failed = [final.error for final in harness.finals.values() if final.finish_reason is FinishReason.ERROR]
        assert len(failed) == sum(alone) and all(isinstance(error, ForwardFailed) for error in failed)
        assert harness.scheduler.counters.failed_steps == call.was_reached


@pytest.mark.share(2)
@pytest.mark.parametrize("stage", ["launch", "collect"])
@pytest.mark.parametrize("num_state_checkpoints", [0, 2, 12])
@MODES
def test_every_step_may_fail_once_where_layers_keep_a_state(
    num_state_checkpoints: int, stage: str, overlap: bool
) -> None:
    """Its sequences begin again with saved states or at their first tokens, and no request fails but one alone."""
    for call in failing_calls(4, at_least=30):
        alone = []

        def hook(plan: StepPlan, at: str, call: NthCall = call, alone: list[bool] = alone) -> None:
            if at == stage:
                try:
                    call()
                except RuntimeError:
                    alone.append(plan.num_rows == 1)
                    raise

        harness = run_scenario(overlap, (None,), hook=hook, num_state_checkpoints=num_state_checkpoints)
        failed = [final.error for final in harness.finals.values() if final.finish_reason is FinishReason.ERROR]
        assert len(failed) == sum(alone) and all(isinstance(error, ForwardFailed) for error in failed)
        assert harness.scheduler.counters.failed_steps == call.was_reached


@pytest.mark.share(1)
@MODES
@GROUPS
def test_every_row_may_fail_once(overlap: bool, windows: tuple[int | None, ...]) -> None:
    """The n-th row of the run fails; only its request ends, unless it had ended already."""
    for call in failing_calls(9, at_least=60):

        def row_errors(plan: StepPlan, call: NthCall = call) -> list[tuple[int, ChairliftError]]:
            faults: list[tuple[int, ChairliftError]] = []
            for row in range(plan.num_rows):
                try:
                    call()
                except RuntimeError:
                    faults.append((row, SamplingFailed("the n-th row fails")))
            return faults

        harness = run_scenario(overlap, windows, row_errors=row_errors)
        failed = [final.error for final in harness.finals.values() if final.finish_reason is FinishReason.ERROR]
        assert len(failed) <= call.was_reached and all(isinstance(error, RequestFailed) for error in failed)


@MODES
@GROUPS
def test_every_second_step_may_fail(overlap: bool, windows: tuple[int | None, ...]) -> None:
    """Steps keep failing: requests fail one by one, and nothing else breaks."""
    call = NthCall(0)

    def hook(plan: StepPlan, at: str) -> None:
        call()
        if at == "launch" and plan.step_id % 2:
            raise RuntimeError("every second step fails")

    harness = run_scenario(overlap, windows, hook=hook)
    assert harness.scheduler.counters.failed_steps > 3


@MODES
@GROUPS
def test_a_runner_that_always_fails_ends_all_requests_with_an_error(overlap: bool, windows: tuple[int, ...]) -> None:
    def hook(plan: StepPlan, at: str) -> None:
        raise MemoryError("no memory")

    harness = run_scenario(overlap, windows, hook=hook)
    reasons = [final.finish_reason for final in harness.finals.values()]
    assert set(reasons) <= {FinishReason.ERROR, FinishReason.ABORT} and reasons.count(FinishReason.ERROR) >= 5
