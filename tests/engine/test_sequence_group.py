"""SequenceGroup: one choice computes the prompt, the others share all of it but its last token."""

from dataclasses import replace

import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import InvalidRequest, RequestTimeout
from chairlift.core.request import RequestPhase
from chairlift.engine.drafters.draft_record import DraftRecord, DraftSource
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens
from chairlift.engine.sequence import SequenceStatus
from chairlift.engine.step_plan import StepPlan
from support_engine import EngineHarness, expected_outcome, make_request, make_scheduler, run_step
from support_shares import for_each

FAKE = FakeConfig(vocab_size=500, num_blocks=64, block_size=4)


@pytest.mark.share(24)
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("windows", [(None,), (None, 6), (5, 9)])
@pytest.mark.parametrize("prompt", [1, 2, 4, 5, 8, 13])
def test_every_choice_gets_its_own_tokens(
    prompt: int, windows: tuple[int | None, ...], overlap: bool, caching: bool
) -> None:
    harness = EngineHarness(replace(FAKE, windows=windows), caching=caching, overlap=overlap, max_batch_tokens=16)
    harness.submit(make_request("a", prompt, 9, n=4, seed=3), make_request("b", prompt, 5, seed=1))
    harness.drain()
    harness.check_outputs(no_faults=True)
    harness.close()
    outputs = [tuple(harness.tokens["a"]), *(tuple(harness.tokens["a", index]) for index in (1, 2, 3))]
    assert len(set(outputs)) == 4


@for_each("caching", [True, False])
@for_each("prompt", [33, 32, 40])
def test_the_prompt_is_allocated_once(prompt: int, caching: bool) -> None:
    scheduler = make_scheduler(num_blocks=200, caching=caching)
    scheduler.add_request(make_request("a", prompt, 8, n=4), 0.0)
    run_step(scheduler)
    plan, _ = run_step(scheduler)
    assert plan.num_rows == 4 and plan.num_new_tokens.tolist() == [1, 1, 1, 1]
    shared, rest = divmod(prompt - 1, 4)
    tails = 1 + -(-(prompt + 1) // 4) - shared - 1  # blocks behind the shared ones, of the prompt owner
    assert scheduler.cache.counts().held == shared + tails + 3 * (1 if rest < 4 else 2)
    assert len(plan.block_copies) == (3 if rest else 0)


def test_the_choices_count_as_one_request_and_its_prompt_once() -> None:
    harness = EngineHarness(FAKE)
    harness.submit(make_request("a", 10, 6, n=3))
    harness.drain()
    final = harness.finals["a"]
    assert final.usage is not None and (final.usage.prompt_tokens, final.usage.completion_tokens) == (10, 18)
    assert harness.scheduler.counters.prompt_tokens == 10 and harness.loop.load().finished_requests == 1


def test_a_choice_that_ends_leaves_the_others_alone() -> None:
    request = make_request("a", 6, 20, n=3, seed=5)
    tokens = [expected_tokens(request.prompt_token_ids, request.params, FAKE, (), index) for index in range(3)]
    stop = next(token for token in tokens[1] if token not in tokens[0] and token not in tokens[2])
    harness = EngineHarness(FAKE)
    harness.submit(make_request("a", 6, 20, n=3, seed=5, stop=[stop]))
    harness.drain()
    assert harness.tokens["a"] == tokens[0] and harness.tokens["a", 2] == tokens[2]
    assert harness.tokens["a", 1] == tokens[1][: tokens[1].index(stop) + 1]
    assert harness.ends["a", 1] is FinishReason.STOP and harness.ends["a"] is FinishReason.LENGTH


def test_deferred_choices_are_not_queued_and_are_pending() -> None:
    scheduler = make_scheduler(max_batch_tokens=4)
    scheduler.add_request(make_request("a", 10, 4, n=3), 0.0)
    assert len(scheduler.waiting) == 1 and scheduler.waiting_tokens == 10
    assert {scheduler.sequences["a", index].status for index in (1, 2)} == {SequenceStatus.DEFERRED}
    assert scheduler.sequences["a", 1].state is RequestPhase.PENDING and scheduler.check_integrity() == []
    for _ in range(3):
        assert len(scheduler.sequences) == 3
        run_step(scheduler)
    assert len(scheduler.waiting) == 2


def test_when_the_prompt_owner_ends_another_choice_takes_over() -> None:
    scheduler = make_scheduler(max_batch_tokens=4)
    scheduler.add_request(make_request("a", 10, 4, n=3), 0.0)
    run_step(scheduler)
    ended = scheduler.abort("a", 0.0, 0)
    assert ended is not None and ended.finish_reason is FinishReason.ABORT and not ended.is_final
    assert scheduler.sequences["a", 1].status is SequenceStatus.WAITING
    assert scheduler.sequences["a", 2].status is SequenceStatus.DEFERRED
    last = None
    while scheduler.sequence_groups:
        _, outputs = run_step(scheduler)
        last = outputs[-1] if outputs else last
    assert last is not None and last.is_final and scheduler.check_integrity() == []


def test_one_output_is_enough_to_let_the_others_follow() -> None:
    harness = EngineHarness(FAKE, caching=False)
    harness.submit(make_request("a", 9, 1, n=4))
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert len(harness.ends) == 4


def test_an_abort_ends_all_choices_with_one_output_and_a_choice_s_only_its_own() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 6, 9, n=3), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    one = scheduler.abort("a", 0.0, 1)
    assert one is not None and one.choice_index == 1 and one.usage is None
    assert scheduler.abort("a", 0.0, 1) is None
    run_step(scheduler)
    rest = scheduler.abort("a", 0.0)
    assert rest is not None and rest.is_final and rest.finish_reason is FinishReason.ABORT
    assert not scheduler.sequences and scheduler.check_integrity() == []


def test_a_choice_that_fails_ends_its_request() -> None:
    fake = replace(FAKE, nan=0)
    candidates = (make_request("a", 6, 60, n=3, seed=seed) for seed in range(1000))
    request = next(
        candidate for candidate in candidates
        if [expected_outcome(candidate, fake, index)[1] for index in range(3)] == [False, True, False]
    )  # fmt: skip
    harness = EngineHarness(fake)
    harness.submit(request, make_request("b", 5, 6))
    harness.drain()
    assert harness.finals["a"].finish_reason is FinishReason.ERROR and harness.finals["a"].choice_index == 1
    assert harness.finals["b"].finish_reason is FinishReason.LENGTH


def test_a_timeout_ends_what_is_left_of_all_choices() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 6, 9, n=3, timeout=5.0), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    (last,) = scheduler.expire(6.0)
    assert last.is_final and isinstance(last.error, RequestTimeout) and not scheduler.sequences


@for_each("overlap", [True, False])
@for_each("windows", [(None,), (None, 7), (7,), (4, 10)])
@for_each("prompt", [7, 8, 10, 14])
def test_a_step_that_fails_with_the_copy_of_a_block_computes_it_again(
    prompt: int, windows: tuple[int | None, ...], overlap: bool
) -> None:
    failed = []

    def hook(plan: StepPlan, stage: str) -> None:
        if stage == "launch" and plan.num_rows > 1 and not failed:
            failed.append(plan)
            raise RuntimeError("before anything was copied")

    harness = EngineHarness(replace(FAKE, windows=windows, block_size=3), hook=hook, overlap=overlap)
    harness.submit(make_request("a", prompt, 6, n=3))
    harness.drain()
    harness.check_outputs(no_faults=True)
    harness.close()
    assert len(failed) == 1 and bool(len(failed[0].block_copies)) == bool((prompt - 1) % 3)


@pytest.mark.parametrize("num_blocks", [9, 12, 16])
def test_preempted_choices_come_back(num_blocks: int) -> None:
    harness = EngineHarness(replace(FAKE, num_blocks=num_blocks), caching=False)
    harness.submit(make_request("a", 7, 20, n=4), make_request("b", 7, 20, n=2, seed=9))
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert harness.scheduler.counters.preemptions


# -- resume ------------------------------------------------------------------------------------------------------------


@for_each("overlap", [True, False])
@for_each("cut", [0, 1, 5, 11])
def test_a_resumed_request_goes_on_where_it_was(cut: int, overlap: bool) -> None:
    request = make_request("a", 6, 12, n=3, seed=8)
    whole = [expected_tokens(request.prompt_token_ids, request.params, FAKE, (), index) for index in range(3)]
    harness = EngineHarness(FAKE, overlap=overlap)
    harness.submit(replace(request, resume=(tuple(whole[0][:cut]), (), tuple(whole[2][: cut // 2]))))
    harness.drain()
    harness.check_outputs(no_faults=True)
    harness.close()
    assert harness.finals["a"].usage is not None and harness.finals["a"].usage.completion_tokens == 36


def test_choices_that_were_over_are_over() -> None:
    plain = make_request("a", 6, 5, n=3, seed=8)
    request = make_request(
        "a", 6, 5, n=3, seed=8, stop=[expected_tokens(plain.prompt_token_ids, plain.params, FAKE, (), 1)[2]]
    )
    whole = [expected_tokens(request.prompt_token_ids, request.params, FAKE, (), index) for index in range(3)]
    assert list(map(len, whole)) == [5, 3, 5]
    harness = EngineHarness(FAKE)
    harness.submit(replace(request, resume=(tuple(whole[0]), tuple(whole[1]))))
    harness.drain()
    assert harness.ends["a"] is FinishReason.LENGTH and harness.ends["a", 1] is FinishReason.STOP
    assert harness.tokens["a", 2] == whole[2] and harness.tokens["a"] == whole[0]


def test_a_request_that_was_over_altogether_ends_at_once() -> None:
    request = make_request("a", 6, 2, n=2)
    whole = [expected_tokens(request.prompt_token_ids, request.params, FAKE, (), index) for index in range(2)]
    harness = EngineHarness(FAKE)
    harness.submit(replace(request, resume=tuple(map(tuple, whole))))
    assert harness.loop.is_idle
    harness.drain()
    assert harness.finals["a"].finish_reason is FinishReason.LENGTH
    assert harness.finals["a"].usage is not None and harness.finals["a"].usage.completion_tokens == 4
    assert harness.scheduler.counters.steps == 0


@pytest.mark.parametrize(
    ("resume", "message"),
    [
        (((1,), (1,), (1,)), "has tokens of 3 choices, the request has 2"),
        (((1, 2, 3, 4, 5),), "has 5 tokens for a choice, the limit is max_tokens = 4"),
        (((9, 1),), "after a token that ends the output"),
    ],
)
def test_tokens_that_cannot_have_been_delivered_are_refused(resume: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_request("a", 3, 4, n=2, stop=[9], resume=resume)


# -- prompt logprobs ---------------------------------------------------------------------------------------------------


@for_each("overlap", [True, False])
@for_each("n", [1, 3])
@for_each("prompt", [1, 2, 9, 30])
def test_every_token_of_a_prompt_but_the_first_is_scored_once(prompt: int, n: int, overlap: bool) -> None:
    harness = EngineHarness(FAKE, max_batch_tokens=7, overlap=overlap)
    harness.submit(make_request("before", prompt, 2))
    harness.drain()
    harness.submit(make_request("a", prompt, 3, n=n, prompt_logprobs=2))
    harness.drain()
    harness.check_outputs(no_faults=True)
    harness.close()
    assert harness.finals["a"].usage is not None and harness.finals["a"].usage.cached_tokens == 0


def test_scores_that_were_delivered_are_not_made_again_after_a_preemption() -> None:
    harness = EngineHarness(replace(FAKE, num_blocks=12), max_batch_tokens=6, caching=True)
    harness.submit(*(make_request(str(number), [number, *range(14)], 14, prompt_logprobs=0) for number in range(4)))
    for _ in range(4):
        harness.step()
    harness.scheduler.table.preempt(next(iter(harness.scheduler.running.values())), harness.clock.now())
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert harness.scheduler.counters.preemptions


def test_the_first_choice_that_starts_anew_reports_the_prompt_before_any_other_has_a_token() -> None:
    """Choice 0 is resumed, so choice 1 computes the prompt; choice 2 must not be faster by a cached prefix."""
    harness = EngineHarness(FAKE, max_batch_tokens=4)
    harness.submit(make_request("warm", 20, 2, seed=1))
    harness.drain()
    request = make_request("a", 20, 6, n=3, seed=1, prompt_logprobs=0)
    tokens = expected_tokens(request.prompt_token_ids, request.params, FAKE)
    outputs = []
    harness.submit(replace(request, resume=(tuple(tokens[:2]), (), ())))
    for _ in range(40):
        outputs += harness.step()
    assert "a" in harness.finals
    reports = [at for at, output in enumerate(outputs) if output.prompt_logprobs]
    starts = [at for at, output in enumerate(outputs) if output.choice_index and output.token_ids]
    assert {outputs[at].choice_index for at in reports} == {1} and max(reports) <= min(starts)
    harness.check_outputs(no_faults=True)
    harness.close()


# -- layers that keep a state ------------------------------------------------------------------------------------------


@pytest.mark.share(6)
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("windows", [(None,), (None, 6), (5, 9), ()])
@pytest.mark.parametrize("prompt", [1, 4, 5, 13])
def test_every_choice_gets_the_state_of_its_own_tokens(
    prompt: int, windows: tuple[int | None, ...], overlap: bool, caching: bool
) -> None:
    fake = replace(FAKE, windows=windows, has_state=True, num_state_checkpoints=6)
    harness = EngineHarness(fake, caching=caching, overlap=overlap, max_batch_tokens=16)
    harness.submit(make_request("a", prompt, 9, n=4, seed=3), make_request("b", prompt, 5, seed=1))
    harness.drain()
    harness.check_outputs(no_faults=True)
    harness.close()


@for_each(("caching", "prompt", "start"), [(True, 33, 32), (True, 32, 28), (True, 4, 0), (False, 33, 0)])
def test_choices_start_with_the_state_behind_the_prompts_last_shared_block(
    caching: bool, prompt: int, start: int
) -> None:
    """Blocks of another choice without a state at their end are of no use: nothing is copied."""
    scheduler = make_scheduler(num_blocks=200, caching=caching, num_state_checkpoints=8)
    scheduler.add_request(make_request("a", prompt, 8, n=3), 0.0)
    run_step(scheduler)
    plan, _ = run_step(scheduler)
    assert sorted(plan.start_positions.tolist()) == [start, start, prompt]
    assert len(plan.block_copies) == 0 and len(plan.state_loads) == (2 if start else 0)
    assert scheduler.check_integrity() == []


def test_the_usage_counts_drafts_of_the_prediction_of_all_choices() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 8, 30, n=3), 0.0)
    group = scheduler.table.groups["a"]
    for sequence in list(group.open.values()):
        sequence.draft_record = DraftRecord()
        sequence.draft_record.add(DraftSource("prediction"), 5, 2)
        sequence.draft_record.add(DraftSource("ngram", 3), 7, 1)
    scheduler.abort("a", 0.0, 1)
    output = scheduler.abort("a", 0.0)
    assert output is not None and output.usage is not None
    assert (output.usage.accepted_prediction_tokens, output.usage.rejected_prediction_tokens) == (6, 9)
