"""draw_arrivals: the same requests for a seed, the means that are asked for, and the shape of each curve."""

import numpy as np
import pytest

from chairlift.bench.fleet_simulation.load.synthetic_arrivals import (
    PEAK_RATIO,
    RATE_CURVES,
    ArrivalOptions,
    draw_arrivals,
)
from chairlift.core.errors import ConfigError


def options(kind: str, seed: int = 0) -> ArrivalOptions:
    return ArrivalOptions(
        kind=kind, rate=20.0, requests=20_000, period_seconds=500.0, prompt_tokens=300, output_tokens=40, seed=seed
    )


@pytest.mark.parametrize("kind", RATE_CURVES)
def test_a_seed_gives_the_same_requests_and_the_means_are_as_asked(kind: str) -> None:
    first, second, other = draw_arrivals(options(kind)), draw_arrivals(options(kind)), draw_arrivals(options(kind, 1))
    assert np.array_equal(first.at, second.at) and np.array_equal(first.output_tokens, second.output_tokens)
    assert len(other.at) != len(first.at) or not np.array_equal(first.at, other.at)
    assert first.seconds == 1000.0 and len(first.at) == pytest.approx(20_000, rel=0.03)
    assert np.all(np.diff(first.at) >= 0) and first.at[0] >= 0 and first.at[-1] <= 1000
    assert first.prompt_tokens.mean() == pytest.approx(300, rel=0.05)
    assert first.output_tokens.mean() == pytest.approx(40, rel=0.05)
    assert first.output_tokens.min() >= 1 and first.prompt_tokens.max() <= 8 * 300


def test_a_day_begins_low_and_has_its_peak_in_the_middle() -> None:
    rates = draw_arrivals(options("diurnal")).rates(25.0)
    assert rates[10] / rates[[0, 19, 20, 39]].mean() == pytest.approx(PEAK_RATIO, rel=0.3)
    assert rates[9:11].mean() == pytest.approx(rates[29:31].mean(), rel=0.2)


def test_bursts_are_short_and_high() -> None:
    rates = draw_arrivals(options("bursts")).rates(10.0)
    assert np.median(rates) < 20 and rates.max() / np.median(rates) == pytest.approx(PEAK_RATIO, rel=0.4)


def test_poisson_arrivals_have_the_variance_of_their_mean() -> None:
    counts = draw_arrivals(options("poisson")).rates(1.0)
    assert counts.var() == pytest.approx(counts.mean(), rel=0.2)


def test_numbers_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="rate of the simulated load must be positive, got 0"):
        ArrivalOptions(kind="poisson", rate=0, requests=1, period_seconds=1)
