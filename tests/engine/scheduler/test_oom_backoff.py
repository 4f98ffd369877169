"""OOMBackoff: how the limit falls and rises; whole engines whose steps fail above a size."""

from collections.abc import Callable

import pytest

from chairlift.core.errors import ForwardFailed
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.oom_backoff import MAX_RISE_STEPS, RISE_STEPS, OOMBackoff
from chairlift.engine.step_plan import StepPlan
from support_engine import EngineHarness, Hook, make_request

MODES = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
STAGES = pytest.mark.parametrize("stage", ["launch", "collect"])
FAKE = FakeConfig(num_blocks=200, block_size=4, vocab_size=1000)


def fails_if(is_too_large: Callable[[StepPlan], bool], stage: str = "launch") -> Hook:
    def hook(plan: StepPlan, at: str) -> None:
        if at == stage and is_too_large(plan):
            raise MemoryError("no memory")

    return hook


def test_a_limit_falls_to_half_of_the_step_that_failed_and_ends_after_enough_steps() -> None:
    memory = OOMBackoff()
    assert memory.bound(9) == 9
    assert memory.shrink(2048) and memory.max_tokens == 1024 and memory.bound(9) == 9
    assert memory.shrink(200) and memory.max_tokens == 100 and memory.bound(101) == 100
    for _ in range(RISE_STEPS - 1):
        memory.record_success(400)
    assert memory.max_tokens == 100
    memory.record_success(400)
    assert memory.max_tokens == 200
    for _ in range(RISE_STEPS):
        memory.record_success(400)
    assert memory.max_tokens is None and memory.num_failures == 2


def test_a_smaller_step_that_fails_never_raises_the_limit() -> None:
    memory = OOMBackoff()
    memory.shrink(10)
    memory.shrink(1000)
    assert memory.max_tokens == 5


def test_after_a_raise_that_failed_the_next_takes_twice_as_many_steps() -> None:
    memory, waits = OOMBackoff(), []
    memory.shrink(16)
    for _ in range(9):
        waits.append(0)
        while memory.max_tokens == 8:
            memory.record_success(1000)
            waits[-1] += 1
        memory.shrink(16)
    assert waits[:3] == [RISE_STEPS, 2 * RISE_STEPS, 4 * RISE_STEPS] and waits[-2:] == [MAX_RISE_STEPS] * 2


def test_one_token_fails_only_the_second_time_in_a_row_and_then_the_limit_ends() -> None:
    memory = OOMBackoff()
    assert memory.shrink(1) and memory.max_tokens == 1
    memory.record_success(100)
    assert memory.shrink(1)
    assert not memory.shrink(1)
    assert memory.max_tokens is None and memory.num_failures == 3


@MODES
@STAGES
@pytest.mark.parametrize("fitting", [1, 2, 5, 30])
def test_every_request_gets_all_its_tokens_from_steps_that_fit(fitting: int, stage: str, overlap: bool) -> None:
    """Six prompts and their decoding rows; steps of more than `fitting` tokens fail."""
    harness = EngineHarness(
        FAKE, hook=fails_if(lambda plan: plan.num_tokens > fitting, stage), overlap=overlap, max_batch_tokens=64
    )
    for name in range(6):
        harness.submit(make_request(str(name), [name + 1] * (5 + 7 * name), 12))
    harness.drain(4000)
    harness.check_outputs(no_faults=True)
    assert 0 < harness.scheduler.counters.failed_steps < 20
    harness.close()


@MODES
def test_decoding_sequences_take_turns_while_a_step_has_too_few_tokens_for_all(overlap: bool) -> None:
    harness = EngineHarness(FAKE, hook=fails_if(lambda plan: plan.num_rows > 3), overlap=overlap, max_batch_tokens=64)
    for name in range(8):
        harness.submit(make_request(str(name), [name + 1], 40))
    for _ in range(60):
        harness.step()
    counts = [len(harness.tokens[str(name)]) for name in range(8)]
    assert min(counts) > 0 and max(counts) - min(counts) < 20
    harness.drain(4000)
    harness.check_outputs(no_faults=True)
    harness.close()


def test_no_sequence_starts_while_as_many_run_as_a_step_has_tokens() -> None:
    harness = EngineHarness(FAKE, max_batch_tokens=64)
    harness.scheduler.table.oom_backoff.shrink(4)
    for name in range(6):
        harness.submit(make_request(str(name), [name + 1], 9))
    harness.step(5)
    assert len(harness.scheduler.running) == 2 and len(harness.scheduler.waiting) == 4
    harness.drain()
    harness.check_outputs(no_faults=True)


@MODES
def test_a_request_that_never_fits_fails_alone_and_the_limit_ends(overlap: bool) -> None:
    def has_culprit(plan: StepPlan) -> bool:
        return 999 in plan.input_ids.tolist()

    harness = EngineHarness(FAKE, hook=fails_if(has_culprit), overlap=overlap, max_batch_tokens=64)
    for name in range(5):
        harness.submit(make_request(str(name), [name + 1, 7], 30))
    harness.submit(make_request("bad", [3, 5, 999], 30))
    harness.drain(4000)
    harness.check_outputs()
    failed = {name: final.error for name, final in harness.finals.items() if final.error}
    assert list(failed) == ["bad"] and isinstance(failed["bad"], ForwardFailed) and "no memory" in str(failed["bad"])
    assert harness.scheduler.table.oom_backoff.max_tokens is None
    harness.close()


def test_a_lack_of_memory_that_passes_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """The only sequence runs one token a step, and one of these steps fails once."""
    failures = [3]
    harness = EngineHarness(FAKE, hook=fails_if(lambda plan: plan.step_id in failures))
    harness.submit(make_request("a", [1, 2], 9))
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert "out of memory in step 3, of 1 tokens in 1 sequences: the next steps have at most 1 tokens" in caplog.text


def test_the_limit_rises_while_the_engine_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    harness = EngineHarness(FAKE, hook=fails_if(lambda plan: plan.step_id == 0), max_batch_tokens=64)
    harness.submit(make_request("a", 40, 2 * RISE_STEPS + 20))
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert harness.scheduler.table.oom_backoff.max_tokens is None
    assert "the next have any number of tokens" in caplog.text
