"""ItlController: how many prompt tokens fit beside decoding sequences when steps have a target."""

import random

import pytest

from chairlift.engine.scheduler.itl_controller import FIRST_GUESS, MIN_PREFILL_TOKENS, ItlController, PrefillTimeBudget
from chairlift.engine.scheduler.running_scheduler import RunningSets
from chairlift.engine.scheduler.step_cost_model import StepCostModel, StepFeatures
from chairlift.engine.sequence import Sequence
from support_engine import make_request, make_result, make_scheduler


def trained_model(largest: int = 512) -> StepCostModel:
    """Train a model on steps that cost 5 ms, 1 ms a row and 0.1 ms a prompt token."""
    model, rng = StepCostModel(), random.Random(0)
    for prompt in [largest, *(rng.randrange(largest + 1) for _ in range(200))]:
        rows = rng.randrange(1, 20)
        model.update(StepFeatures(rows, prompt, rng.randrange(1000), 0.0), 5 + rows + 0.1 * prompt)
    return model


def running(rows: int) -> RunningSets:
    return RunningSets(
        decode_ready=[Sequence(make_request(str(number), 3), number, b"root", 0.0) for number in range(rows)]
    )


def granted_prefill_tokens(target: float, model: StepCostModel, running_sets: RunningSets) -> int:
    controller = ItlController(target, model)
    return controller.prefill_token_budget(controller.remaining_ms(running_sets))


def test_prompts_get_what_the_target_leaves() -> None:
    assert granted_prefill_tokens(35.0, trained_model(), running(10)) == pytest.approx(200, rel=0.05)
    assert granted_prefill_tokens(35.0, trained_model(), running(20)) == pytest.approx(100, rel=0.05)


def test_a_few_are_granted_in_any_case() -> None:
    assert granted_prefill_tokens(10.0, trained_model(), running(20)) == MIN_PREFILL_TOKENS


def test_the_first_step_is_a_guess_and_the_next_ones_grow_slowly() -> None:
    assert granted_prefill_tokens(1000.0, StepCostModel(), running(1)) == FIRST_GUESS
    assert granted_prefill_tokens(1000.0, trained_model(largest=100), running(1)) == 200


def test_no_sequence_starts_when_decoding_takes_the_target_alone() -> None:
    controller = ItlController(15.0, trained_model())
    assert not controller.is_saturated(controller.remaining_ms(running(8))) and controller.is_saturated(
        controller.remaining_ms(running(12))
    )


def test_a_target_that_no_request_meets_rejects_none() -> None:
    controller = ItlController(2.0, trained_model())
    assert not controller.is_saturated(controller.remaining_ms(running(12)))


def test_the_budget_charges_each_prompt_token_by_its_context() -> None:
    """A pair costs 0.001 ms here, so that ten tokens behind a thousand cost as much as a hundred at the beginning."""
    model, rng = StepCostModel(), random.Random(0)
    for _ in range(300):
        count, seen = rng.randrange(1, 300), rng.choice([0, 100, 1000])
        pairs = count * (seen + (count + 1) / 2)
        model.update(StepFeatures(1, count, 10, pairs), 5 + 0.1 * count + 0.001 * pairs)
    budget = PrefillTimeBudget(model, 22.0)
    assert budget.fits(1000) == pytest.approx(20, abs=1) and budget.fits(0) == pytest.approx(132, abs=4)
    budget.take(10, 1000)
    assert budget.fits(1000) == pytest.approx(10, abs=1)
    budget.take(10, 1000)
    assert budget.fits(1000) <= 1


def test_the_least_fits_whatever_it_costs_and_only_once_a_step() -> None:
    budget = PrefillTimeBudget(trained_model(), -5.0)
    assert budget.fits(10_000) == MIN_PREFILL_TOKENS
    budget.take(10, 10_000)
    assert budget.fits(0) == MIN_PREFILL_TOKENS - 10


def test_without_observations_there_is_no_bound() -> None:
    assert PrefillTimeBudget(StepCostModel(), 5.0).fits(10) > 10**6


def test_a_question_behind_a_long_cached_document_is_prefilled_in_steps_of_the_target() -> None:
    scheduler = make_scheduler(target_itl_ms=50.0, max_batch_tokens=2048, num_blocks=9000, max_model_len=40_000)
    now, longest = 0.0, 0.0

    def step() -> float:
        nonlocal now
        plan = scheduler.schedule(now)
        assert plan is not None
        took = 0.01 + 2e-5 * plan.num_tokens + 1e-8 * plan.num_prefill_pairs
        now += took
        scheduler.commit(make_result(plan), now)
        return took

    document = [1 + at * at % 900 for at in range(20_000)]
    scheduler.add_request(make_request("generates", [1] * 64, 3000), now)
    for name, prompt in [*((f"warm {n}", [n + 2] * 2000) for n in range(20)), ("document", [*document, 1])]:
        scheduler.add_request(make_request(name, prompt, 3), now)
        while name in scheduler.sequences:
            step()
    for question in range(3):
        scheduler.add_request(make_request(f"q{question}", [*document, *[question + 5] * 1500], 3), now)
        while f"q{question}" in scheduler.sequences:
            longest = max(longest, step())
    assert scheduler.counters.cached_tokens >= 3 * 19_000 and longest < 0.055


def test_the_scheduler_steers_by_the_times_between_commits() -> None:
    """Steps of 10 ms and 0.5 ms a prompt token, a target of 30 ms: about 40 prompt tokens a step."""
    scheduler = make_scheduler(target_itl_ms=30.0, num_blocks=4000, max_model_len=8000, max_batch_tokens=512)
    scheduler.add_request(make_request("a", [500] * 8, 400), 0.0)
    now, sizes = 0.0, []
    for step in range(120):
        if step % 6 == 1:
            scheduler.add_request(make_request(f"b{step}", [500 + step] * 300, 1), now)
        plan = scheduler.schedule(now)
        assert plan is not None
        prompt = plan.num_tokens - scheduler.in_flight_steps[-1].num_decodes
        sizes.append(prompt)
        now += (10 + 0.5 * prompt) / 1e3
        scheduler.commit(make_result(plan), now)
    settled = [size for size in sizes[60:] if size]
    assert len(settled) > 40 and 35 <= sorted(settled)[len(settled) // 2] <= 41 and max(settled) <= 45
