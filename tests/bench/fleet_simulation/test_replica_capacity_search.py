"""measure_capacity: the rate at which one replica reaches the goal, and an error where it cannot meet the SLO."""

from dataclasses import replace

import pytest

from chairlift.bench.fleet_simulation.replica_capacity_search import measure_capacity
from chairlift.core.errors import ConfigError
from support_scaling_load import LOAD, OPTIONS, capacity


@pytest.mark.full
def test_the_capacity_is_the_rate_at_which_one_replica_reaches_the_goal() -> None:
    assert 1.0 < capacity() < 20.0
    assert measure_capacity(replace(LOAD, slo_goal=0.8)) > capacity()
    with pytest.raises(ConfigError, match="do not meet the SLO on a replica alone"):
        measure_capacity(replace(LOAD, options=replace(OPTIONS, slo={"ttft": 0.001})))
