"""StepCostModel: learns step costs, also from noisy steps, and adapts to changes of the machine."""

import random
from dataclasses import replace

import numpy as np
import pytest

from chairlift.engine.scheduler.step_cost_model import LOWER_BOUND_FACTOR, MIN_OBSERVATIONS, StepCostModel, StepFeatures
from chairlift.engine.step_plan import StepPlan


def shape(rows: int, prompt_tokens: int = 0, context_tokens: int = 100) -> StepFeatures:
    return StepFeatures(rows, prompt_tokens, rows * context_tokens, prompt_tokens * context_tokens / 2)


def test_the_tokens_of_rows_with_drafts_are_rows_and_no_prompt_tokens() -> None:
    plan = StepPlan(
        step_id=0, released_slots=(), new_sequences=(), slots=np.arange(3, dtype=np.int32),
        num_new_tokens=np.array([1, 5, 3], np.int32), start_positions=np.array([10, 20, 30], np.int32),
        new_blocks=np.empty((0, 4), np.int32), input_ids=np.zeros(9, np.int32),
        sample_rows=np.array([0, 1, 2], np.int32), num_drafts=np.array([0, 0, 2], np.int32),
    )  # fmt: skip
    assert StepFeatures.of(plan, 1) == StepFeatures(4, 5, 11 + 33, 5 * (20 + 3.0))


def test_a_row_costs_no_more_than_a_prompt_token() -> None:
    model = StepCostModel()
    for _ in range(50):
        model.update(StepFeatures(1, 0, 100, 0.0), 10.0)
    model.update(StepFeatures(0, 100, 0, 0.0), 60.0)
    assert 0 <= model.row_ms <= 0.61
    assert trained_model(300).row_ms == pytest.approx(0.25, rel=0.05)


def cost(features: StepFeatures, slower: float = 1.0) -> float:
    return slower * (
        5 + 0.5 * features.rows + 0.25 * features.prompt_tokens + 1e-4 * features.tokens_read + 2e-5 * features.pairs
    )


def sampled_features(rng: random.Random) -> StepFeatures:
    return shape(rng.randrange(1, 40), rng.choice([0, 0, 16, 64, 256]), rng.randrange(20, 3000))


def trained_model(
    steps: int, *, noise: float = 0.0, slower: float = 1.0, model: StepCostModel | None = None
) -> StepCostModel:
    rng, model = random.Random(4), model or StepCostModel()
    for _ in range(steps):
        features = sampled_features(rng)
        model.update(features, cost(features, slower) * (1 + noise * rng.uniform(-1, 1)))
    return model


@pytest.mark.parametrize(("noise", "bound"), [(0.0, 0.01), (0.2, 0.1)])
def test_an_expectation_is_close_to_the_truth(noise: float, bound: float) -> None:
    model, rng = trained_model(300, noise=noise), random.Random(9)
    for _ in range(50):
        features = sampled_features(rng)
        assert model.expected_ms(features) == pytest.approx(cost(features), rel=bound)


def test_the_deviation_says_how_far_off_expectations_are() -> None:
    assert trained_model(400).deviation < 0.01
    assert 0.05 < trained_model(400, noise=0.2).deviation < 0.15  # the mean of |uniform(-0.2, 0.2)| is 0.1


def test_it_follows_a_machine_that_becomes_slower() -> None:
    model = trained_model(300)
    trained_model(600, slower=2.0, model=model)
    assert model.expected_ms(shape(8, 64)) == pytest.approx(cost(shape(8, 64), 2.0), rel=0.1)


@pytest.mark.parametrize("seconds", [0.5, 10.0])
def test_a_cold_first_step_is_forgotten_as_soon_as_others_come(seconds: float) -> None:
    model, rng = StepCostModel(), random.Random(1)
    model.update(shape(0, 200), seconds * 1e3)
    for _ in range(MIN_OBSERVATIONS):
        features = sampled_features(rng)
        model.update(features, cost(features))
    for features in (shape(1), shape(8, 64), shape(0, 200)):
        assert model.expected_ms(features) < 1.5 * cost(features)


def test_what_is_said_of_one_kind_of_step_holds_when_rows_and_steps_go_together() -> None:
    """No coefficient may be negative to offset another: sums would be right and each cost wrong."""
    model = StepCostModel()
    model.update(shape(0, 500), 2000.0)
    for _ in range(60):
        model.update(shape(8), cost(shape(8)))
    assert model.expected_ms(shape(1)) <= 1.05 * cost(shape(8)) and model.expected_ms(shape(8)) < 1.1 * cost(shape(8))


@pytest.mark.parametrize("only", [shape(8), shape(0, 32)])
def test_one_kind_of_step_alone_follows_a_slower_machine_too(only: StepFeatures) -> None:
    model = trained_model(300)
    for _ in range(3000):
        model.update(only, cost(only))
    for _ in range(400):
        model.update(only, cost(only, 2.0))
    assert model.expected_ms(only) == pytest.approx(cost(only, 2.0), rel=0.05)


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_a_lower_bound_is_one_also_when_one_user_asks_one_thing_after_another(noise: float) -> None:
    model, rng = StepCostModel(), random.Random(3)
    for _ in range(40):
        prompt = rng.randrange(20, 400)
        for features in [
            StepFeatures(0, prompt, 0, prompt * prompt / 2),
            *(StepFeatures(1, 0, prompt + n, 0) for n in range(20)),
        ]:
            model.update(features, cost(features) * (1 + noise * rng.gauss(0, 1)))
        real = cost(StepFeatures(0, prompt, 0, prompt * prompt / 2)) + 19 * cost(StepFeatures(1, 0, prompt, 0))
        assert model.lower_bound_ms(prompt, 10_000, 19) <= real


def test_a_step_that_took_no_time_does_not_outweigh_the_others() -> None:
    model = trained_model(300)
    model.update(shape(8, 64), 1e-6)
    assert model.expected_ms(shape(8)) > 0.7 * cost(shape(8))


def test_one_step_that_hangs_does_not_spoil_the_rest() -> None:
    model = trained_model(300)
    model.update(shape(8), 10_000.0)
    assert model.expected_ms(shape(8)) < 1.5 * cost(shape(8))


def test_ten_thousand_steps_without_a_prompt_forget_nothing_that_matters() -> None:
    model = trained_model(300)
    for _ in range(10_000):
        model.update(shape(8), cost(shape(8)))
    assert np.isfinite(model.expected_ms(shape(8, 64)))
    assert model.expected_ms(shape(8, 64)) == pytest.approx(cost(shape(8, 64)), rel=0.2)


@pytest.mark.parametrize(("tokens", "context_tokens"), [(10, 0), (100, 1000), (2000, 0), (1, 5000)])
def test_so_many_prompt_tokens_take_as_long_as_was_given(tokens: int, context_tokens: int) -> None:
    takes = 0.25 * tokens + 2e-5 * (tokens * context_tokens + tokens * (tokens + 1) / 2)
    assert trained_model(300).prefill_tokens_within(takes, context_tokens) == pytest.approx(tokens, rel=0.05)


def test_no_time_is_no_token_and_unknown_costs_are_no_bound() -> None:
    assert (
        trained_model(300).prefill_tokens_within(0.0, 10) == trained_model(300).prefill_tokens_within(-3.0, 10) == 0.0
    )
    assert StepCostModel().prefill_tokens_within(5.0, 10) == float("inf")


def test_the_least_a_request_needs_is_its_prompt_and_a_step_for_each_further_token() -> None:
    model = trained_model(300)
    assert model.lower_bound_ms(100, 50, 4) == pytest.approx(
        LOWER_BOUND_FACTOR * (2 * 5 + 0.25 * 100 + 4 * 5.5), rel=0.05
    )


def test_nothing_is_promised_before_enough_is_known() -> None:
    assert trained_model(MIN_OBSERVATIONS - 1).lower_bound_ms(100, 50, 4) == 0.0
    without_prompts = StepCostModel()
    for _ in range(2 * MIN_OBSERVATIONS):
        without_prompts.update(shape(8), cost(shape(8)))
    assert without_prompts.lower_bound_ms(100, 50, 4) == 0.0


def test_the_shape_of_a_plan() -> None:
    def ints(*numbers: int) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        return np.array(numbers, np.int32)

    plan = StepPlan(
        step_id=0, released_slots=(), new_sequences=(), slots=ints(0, 1, 2, 3), num_new_tokens=ints(1, 1, 1, 3),
        start_positions=ints(9, 4, 7, 10), new_blocks=ints().reshape(-1, 4), input_ids=ints(*[5] * 6),
        sample_rows=ints(0, 1, 3),
    )  # fmt: skip
    # Two rows generate and see 10 and 5 tokens; a prompt token sees 8, three others 11, 12 and 13.
    assert StepFeatures.of(plan, 2) == StepFeatures(rows=2, prompt_tokens=4, tokens_read=15, pairs=8 + 11 + 12 + 13)
    decodes = replace(plan, slots=plan.slots[:3], num_new_tokens=ints(1, 1, 1), start_positions=ints(9, 4, 7))
    assert StepFeatures.of(decodes, 3) == StepFeatures(rows=3, prompt_tokens=0, tokens_read=23, pairs=0.0)
