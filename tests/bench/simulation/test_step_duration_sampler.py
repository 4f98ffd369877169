"""StepDurationSampler: noise depends on the seed alone, with mean one and the spread of its model."""

import numpy as np
import pytest

from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.bench.simulation.step_duration_sampler import StepDurationSampler
from support_step_plans import plan


def test_noise_hangs_on_the_seed_alone_and_has_mean_one() -> None:
    noisy = SimStepModel(step=1.0, noise=0.3)
    first, again, other = (StepDurationSampler(noisy, seed) for seed in (1, 1, 2))
    drawn = [first(plan((0, 1))) for _ in range(4000)]
    assert drawn == [again(plan((0, 1))) for _ in range(4000)]
    assert drawn[:3] != [other(plan((0, 1))) for _ in range(3)]
    assert np.mean(drawn) == pytest.approx(1.0, abs=0.03)
    assert np.std(np.log(drawn)) == pytest.approx(0.3, abs=0.03)
    assert StepDurationSampler(SimStepModel(step=1.0), 1)(plan((0, 1))) == 1.0
