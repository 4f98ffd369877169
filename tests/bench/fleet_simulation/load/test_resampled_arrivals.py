"""sample_arrivals: sampled requests have the lengths of the given ones, at the rate that is asked for."""

import numpy as np
import pytest

from chairlift.bench.fleet_simulation.load.arrivals import Arrivals
from chairlift.bench.fleet_simulation.load.resampled_arrivals import sample_arrivals

ARRIVALS = Arrivals(
    name="two", at=np.array([0.0, 1.0]), prompt_tokens=np.array([100, 900]), output_tokens=np.array([20, 300]),
    seconds=2.0,
)  # fmt: skip


def test_sampled_arrivals_have_the_lengths_of_the_given_ones() -> None:
    sampled = sample_arrivals(ARRIVALS, 4.0, 200, 0)
    assert set(zip(sampled.prompt_tokens, sampled.output_tokens, strict=True)) == {(100, 20), (900, 300)}
    assert sampled.seconds == 50.0 and sampled.at[-1] == pytest.approx(50.0, rel=0.2)
