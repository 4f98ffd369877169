"""fit: finds the costs behind measured steps, also with noise, pauses and overlap; too few steps are refused."""

import numpy as np
import pytest

from chairlift.bench.simulation.sim_step_model import COSTS, SimStepModel, StepWork
from chairlift.bench.simulation.step_fit import LEAST_STEPS, fit
from chairlift.bench.simulation.step_samples import StepSample
from chairlift.core.errors import ConfigError

TRUE = SimStepModel(step=0.02, row=0.001, prefill_token=0.0005, context_token=4e-6, prefill_pair=6e-7)


def run(model: SimStepModel, count: int = 400, noise: float = 0.0, seed: int = 0) -> list[StepSample]:
    """Return consecutive steps of a machine with this model; half of them have no prompt."""
    rng = np.random.default_rng(seed)
    now, samples = 0.0, []
    for number in range(count):
        rows, prompt = int(rng.integers(1, 64)), int(rng.integers(2, 512)) if number % 2 else 0
        work = StepWork(1, rows, prompt, rows * int(rng.integers(10, 900)), prompt * int(rng.integers(1, 900)))
        seconds = model.seconds(work) * float(np.exp(noise * rng.standard_normal()))
        samples.append(StepSample(work, now, now + seconds))
        now += seconds
    return samples


def costs(model: SimStepModel) -> list[float]:
    return [getattr(model, name) for name in COSTS]


def test_the_numbers_behind_exact_times_are_found() -> None:
    found = fit(run(TRUE), "a test")
    assert costs(found.model) == pytest.approx(costs(TRUE), rel=1e-6)
    assert found.model.origin == "a test" and found.steps == 400
    assert max(found.median_error, found.p90_error, found.model.noise) < 1e-9


def test_a_cost_that_is_not_there_is_zero_and_none_is_negative() -> None:
    found = fit(run(SimStepModel(step=0.03, context_token=1e-6), noise=0.05))
    assert found.model.step == pytest.approx(0.03, rel=0.05)
    assert min(costs(found.model)) == 0.0


def test_noise_is_reported_as_spread_and_error() -> None:
    found = fit(run(TRUE, noise=0.1))
    assert costs(found.model) == pytest.approx(costs(TRUE), rel=0.3)
    assert found.model.noise == pytest.approx(0.1, rel=0.25)
    assert found.median_error == pytest.approx(0.067, rel=0.25)
    assert found.p90_error == pytest.approx(0.165, rel=0.3)


def test_pauses_of_the_machine_do_not_move_it() -> None:
    now, samples = 0.0, []
    for number, (work, began, ended) in enumerate(run(TRUE)):
        seconds = (ended - began) * (2 if number % 4 == 0 else 1)
        samples.append(StepSample(work, now, now + seconds))
        now += seconds
    assert costs(fit(samples).model) == pytest.approx(costs(TRUE), rel=0.02)


def test_of_two_steps_in_flight_each_counts_from_the_end_of_the_other() -> None:
    apart = run(TRUE)
    overlapping = [StepSample(each.work, max(0.0, each.started_at - 0.01), each.ended) for each in apart]
    assert costs(fit(overlapping).model) == pytest.approx(costs(TRUE), rel=1e-6)


def test_a_clock_that_begins_anew_is_another_run() -> None:
    assert costs(fit(run(TRUE) + run(TRUE, seed=1)).model) == pytest.approx(costs(TRUE), rel=1e-6)


def test_too_few_steps_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=f"at least {LEAST_STEPS} steps in the trace, got 3"):
        fit(run(TRUE, 3))
