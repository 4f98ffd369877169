"""may_eject: at most half of a pool; slow_start_factor: from a tenth to the full weight; HealthConfig: errors."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.health.config import HealthConfig, may_eject, slow_start_factor
from support_shares import for_each


@for_each(("size", "most"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (100, 50)])
def test_at_most_half_of_a_pool_is_ejected(size: int, most: int) -> None:
    assert [may_eject(num, size) for num in range(size + 1)] == [True] * most + [False] * (size + 1 - most)


@for_each(
    ("age", "factor"),
    [(-1, 0.1), (0, 0.1), (3, 0.1), (6, 0.2), (15, 0.5), (29.9, 0.99666), (30, 1), (99, 1)],
)
def test_the_weight_grows_from_a_tenth_over_thirty_seconds(age: float, factor: float) -> None:
    assert slow_start_factor(age, 30.0) == pytest.approx(factor, abs=1e-4)


def test_no_slow_start_is_the_full_weight_at_once() -> None:
    assert slow_start_factor(0.0, 0.0) == 1.0


def test_a_slow_start_without_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="slow_start_seconds must be at least 0, got -1"):
        HealthConfig(slow_start_seconds=-1.0)
