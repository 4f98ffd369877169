"""DraftModelDrafter: drafts of a second runner, for all sequences of a step together."""

import logging

import pytest

from chairlift.core.errors import ChairliftError, NonFiniteLogits
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.drafters.draft_model import MAX_STEP_TOKENS
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_plan import StepPlan
from support_engine import EngineHarness, make_request

FAKE = FakeConfig(vocab_size=100, block_size=4, num_blocks=500, max_model_len=1000)


def engine(fake: FakeConfig = FAKE, **options: int) -> EngineHarness:
    return EngineHarness(fake, **{"max_batch_tokens": 512, **options})  # type: ignore[arg-type]


class PlanRecorder:
    """A hook of a fake runner that keeps the plans."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def __call__(self, plan: StepPlan, stage: str) -> None:
        if stage == "launch":
            self.plans.append(plan)


def test_a_draft_model_that_agrees_has_every_draft_confirmed() -> None:
    harness = engine()
    harness.use_draft_model(max_drafts=4)
    harness.submit(make_request("a", [9, 8, 7], 21), make_request("b", 9, 21))
    harness.drain()
    counters = harness.scheduler.counters
    assert counters.draft_tokens == counters.confirmed_draft_tokens == 2 * 16
    assert counters.steps == 5  # the prompts, then 5 tokens of each a step


def test_a_draft_model_that_disagrees_changes_no_token_and_has_few_steps() -> None:
    harness, recorder = engine(), PlanRecorder()
    harness.use_draft_model(FakeConfig(vocab_size=100, block_size=4, num_blocks=500, seed=1), hook=recorder)
    harness.submit(make_request("a", 5, 200))
    harness.drain()
    counters = harness.scheduler.counters
    assert counters.steps > 180 and counters.confirmed_draft_tokens < 10
    assert 20 <= counters.draft_tokens <= 60 and len(recorder.plans) < 70


def test_all_sequences_are_drafted_in_the_same_steps() -> None:
    harness, recorder = engine(), PlanRecorder()
    harness.use_draft_model(max_drafts=3, hook=recorder)
    harness.submit(*(make_request(str(length), [length] * length, 20) for length in (3, 6, 8)))
    harness.step(3)
    assert [plan.num_rows for plan in recorder.plans] == [3] * 6
    # Prompts and their first tokens; then single drafts; then, since all were confirmed, the last draft and a token.
    assert [plan.num_tokens for plan in recorder.plans] == [20, 3, 3, 6, 3, 3]


def test_sampled_requests_are_drafted_with_their_own_random_numbers() -> None:
    harness = engine()
    harness.use_draft_model()
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=24, n=2).with_defaults({}, max_tokens=1, seed=0)
    harness.submit(GenerateRequest(request_id="a", prompt_token_ids=(1, 2, 3), params=params))
    harness.drain()
    counters = harness.scheduler.counters
    assert counters.draft_tokens == counters.confirmed_draft_tokens > 30


def test_a_long_prompt_is_computed_in_slices_while_others_have_drafts() -> None:
    harness, recorder = engine(), PlanRecorder()
    harness.use_draft_model(hook=recorder)
    harness.submit(make_request("short", [5, 6], 200))
    harness.step(2)
    harness.submit(make_request("long", [token % 90 for token in range(600)], 60))
    harness.step(2)
    del recorder.plans[:]
    harness.step(2)
    assert [plan.num_tokens for plan in recorder.plans[::4]] == [MAX_STEP_TOKENS] * 2
    assert [plan.sample_rows.tolist() for plan in recorder.plans[::4]] == [[0]] * 2
    harness.step(1)
    drafts = {each.request_id: each.draft_record for each in harness.scheduler.running.values()}
    long = drafts["long"]
    assert long is not None and long.num_confirmed == 4
    harness.drain()


def test_a_step_with_prompt_tokens_is_not_made_longer() -> None:
    harness, recorder = engine(max_chunk_tokens=4), PlanRecorder()
    harness.use_draft_model(hook=recorder)
    harness.submit(make_request("a", 12, 3))
    harness.step(3)
    assert recorder.plans == []


def test_equal_prefixes_are_computed_once() -> None:
    harness, recorder = engine(), PlanRecorder()
    harness.use_draft_model(hook=recorder)
    harness.submit(make_request("a", 42, 12))
    harness.drain()
    del recorder.plans[:]
    harness.submit(make_request("b", 42, 12))
    harness.drain()
    assert recorder.plans[0].start_positions.tolist() == [40]


def test_ended_sequences_leave_nothing() -> None:
    harness = engine()
    drafter = harness.use_draft_model(max_sequences=4)
    harness.submit(*(make_request(str(number), [number, 7], 30) for number in range(4)))
    harness.step(3)
    assert len(drafter._cache.states) == 4
    harness.abort("1")
    assert len(drafter._cache.states) == 3
    harness.drain()
    assert not drafter._cache.states and drafter._cache._manager.pool.held == 0


def test_a_failing_draft_model_is_off_and_requests_go_on(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def fail(plan: StepPlan, stage: str) -> None:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise RuntimeError("no more memory")

    harness = engine()
    drafter = harness.use_draft_model(hook=fail)
    harness.submit(make_request("a", 5, 40), make_request("b", 5, 40))
    with caplog.at_level(logging.WARNING):
        harness.drain()
    assert drafter.is_off and harness.draft_runner is not None and harness.draft_runner.stopped
    assert [record.message for record in caplog.records] == [
        "the draft model failed, so requests go on without it: RuntimeError('no more memory')"
    ]
    assert {final.finish_reason for final in harness.finals.values()} == {"length"}


def test_a_row_that_fails_alone_gets_no_drafts() -> None:
    harness = engine()
    drafter = harness.use_draft_model()
    assert harness.draft_runner is not None

    def fail_longer(plan: StepPlan) -> list[tuple[int, ChairliftError]]:
        ends = (plan.start_positions + plan.num_new_tokens).tolist()
        return [(row, NonFiniteLogits("NaN")) for row, end in enumerate(ends) if end > 500]

    harness.draft_runner._row_errors = fail_longer
    harness.submit(make_request("a", 3, 20), make_request("b", [token % 90 for token in range(505)], 20))
    harness.drain()
    assert not drafter.is_off
    assert harness.scheduler.counters.confirmed_draft_tokens == 15


def test_drafts_of_a_step_that_is_tried_again_are_made_once() -> None:
    harness, recorder = engine(), PlanRecorder()
    drafter = harness.use_draft_model(hook=recorder)
    harness.submit(make_request("a", 3, 20), make_request("b", [9, 8, 7], 20))
    harness.step(2)
    sequences = list(harness.scheduler.running.values())
    drafter.prepare([(sequences[0], 4)])
    num_plans, drafts = len(recorder.plans), drafter.propose(sequences[0], 4)
    drafter.prepare([(each, 4) for each in sequences])
    assert len(recorder.plans) == num_plans + 4 and len(drafts) == 4
    assert drafter.propose(sequences[0], 4) == drafts and len(drafter.propose(sequences[1], 4)) == 4
    harness.drain()


def test_little_memory_is_given_to_those_for_whom_it_suffices() -> None:
    harness = engine()
    harness.use_draft_model(FakeConfig(vocab_size=100, block_size=4, num_blocks=12))
    harness.submit(make_request("long", 60, 30), make_request("short", 3, 30))
    harness.drain()
    assert harness.scheduler.counters.confirmed_draft_tokens == 23


def test_tokens_that_the_draft_model_does_not_have_get_no_drafts() -> None:
    harness = engine()
    drafter = harness.use_draft_model(FakeConfig(vocab_size=50, block_size=4, num_blocks=100))
    harness.submit(make_request("a", [60, 1], 20))
    harness.drain()
    assert not harness.scheduler.counters.draft_tokens and not drafter.is_off


def test_behind_the_draft_models_longest_sequence_there_are_no_drafts() -> None:
    harness = engine()
    harness.use_draft_model(FakeConfig(vocab_size=100, block_size=4, num_blocks=100, max_model_len=20))
    harness.submit(make_request("a", 5, 40))
    harness.drain()
    assert 8 <= harness.scheduler.counters.confirmed_draft_tokens <= 15


def test_with_two_steps_in_flight_sequences_wait_for_their_samples() -> None:
    harness = engine(overlap=True)
    harness.use_draft_model()
    harness.submit(make_request("a", 5, 40), make_request("b", 8, 40))
    harness.drain()
    harness.close()
    assert harness.scheduler.counters.confirmed_draft_tokens > 50


def test_warmup_of_a_draft_model_ends_nothing() -> None:
    harness = engine()
    drafter = harness.use_draft_model()
    drafter.warmup()
    assert harness.draft_runner is not None and harness.draft_runner.warmups == 1
