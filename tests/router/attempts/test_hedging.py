"""HedgeController: the delay is a quantile of recent times to first token, and hedges keep to their share."""

from random import Random
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.attempts.hedging import HedgeConfig, HedgeController


def test_no_delay_is_known_before_there_are_enough_samples() -> None:
    hedging = HedgeController(HedgeConfig(min_samples=3))
    for seconds in (1.0, 2.0):
        hedging.record_first_token(seconds)
        assert hedging.delay_seconds() is None
    hedging.record_first_token(3.0)
    assert hedging.delay_seconds() == 3.0


@pytest.mark.parametrize(("quantile", "delay"), [(0.5, 51.0), (0.95, 96.0), (0.999, 100.0)])
def test_the_delay_is_a_quantile_of_the_times_to_first_token(quantile: float, delay: float) -> None:
    hedging = HedgeController(HedgeConfig(quantile=quantile, num_samples=100))
    samples = [float(i) for i in range(1, 101)]
    Random(3).shuffle(samples)
    for seconds in samples:
        hedging.record_first_token(seconds)
    assert hedging.delay_seconds() == delay


def test_only_recent_times_count() -> None:
    hedging = HedgeController(HedgeConfig(num_samples=50))
    random = Random(4)
    for _ in range(500):
        hedging.record_first_token(random.choice([10.0, 20.0, 30.0]))
    for _ in range(50):
        hedging.record_first_token(1.0)
    assert hedging.delay_seconds() == 1.0
    assert len(hedging._sorted) == len(hedging._recent) == 50


def test_a_fast_pool_is_not_hedged_at_once() -> None:
    hedging = HedgeController(HedgeConfig(min_samples=1, min_delay_seconds=0.05))
    hedging.record_first_token(0.001)
    assert hedging.delay_seconds() == 0.05


@pytest.mark.parametrize("share", [0.05, 0.01, 0.3, 1.0])
def test_hedges_never_exceed_their_share_of_the_requests(share: float) -> None:
    hedging, random = HedgeController(HedgeConfig(max_share=share)), Random(5)
    for _ in range(10_000):
        hedging.record_request()
        if random.random() < 0.9:
            hedging.acquire_hedge()
        assert hedging.num_hedges <= share * hedging.num_requests + 1e-6
    assert hedging.num_hedges == pytest.approx(min(share, 0.9) * 10_000, rel=0.02)


def test_the_first_hedge_comes_with_the_twentieth_request() -> None:
    hedging = HedgeController()
    for number in range(1, 21):
        hedging.record_request()
        assert hedging.acquire_hedge() is (number == 20)


def test_a_burst_is_bounded() -> None:
    hedging = HedgeController(HedgeConfig(max_saved=4))
    for _ in range(10_000):
        hedging.record_request()
    assert [hedging.acquire_hedge() for _ in range(5)] == [True] * 4 + [False]
    hedging.return_hedge()
    assert hedging.num_hedges == 3
    assert hedging.acquire_hedge()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quantile": 0.0}, "quantile must be above 0 and below 1, got 0"),
        ({"quantile": 1.0}, "quantile must be above 0 and below 1, got 1"),
        ({"max_share": 1.1}, "share of hedged requests must be between 0 and 1, got 1.1"),
        ({"min_samples": 0}, "hedging needs 1 to 512 samples before it starts, got 0"),
        ({"min_samples": 600}, "hedging needs 1 to 512 samples before it starts, got 600"),
    ],
)
def test_a_config_out_of_range_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HedgeConfig(**config)
