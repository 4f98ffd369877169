"""measure_capacity: the rate at which one replica reaches the goal, and an error where it cannot meet the SLO."""

from dataclasses import replace
from functools import cache

import pytest

from chairlift.bench.fleet_simulation.fleet_run import FleetOptions
from chairlift.bench.fleet_simulation.load.synthetic_arrivals import ArrivalOptions, draw_arrivals
from chairlift.bench.fleet_simulation.replica_capacity_search import measure_capacity
from chairlift.bench.fleet_simulation.scaling_rule_comparison import (
    FleetLoad,
)
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig

OPTIONS = FleetOptions(
    machine=SimReplicaSettings(config=SchedulerConfig(max_running_requests=8, max_prefill_tokens=256)),
    initial_replicas=1, max_replicas=8, cold_start_seconds=(5.0, 5.0), slo={"ttft": 3.0, "tpot": 0.1},
)  # fmt: skip

LOAD = FleetLoad(
    arrivals=draw_arrivals(ArrivalOptions(
        kind="diurnal", rate=4.0, requests=500, period_seconds=125.0, prompt_tokens=128, output_tokens=40
    )),
    options=OPTIONS, concurrency_ratios=(0.5,),
)  # fmt: skip


@cache
def capacity() -> float:
    """Return the requests per second of one replica."""
    return measure_capacity(LOAD)


@pytest.mark.full
def test_the_capacity_is_the_rate_at_which_one_replica_reaches_the_goal() -> None:
    assert 1.0 < capacity() < 20.0
    assert measure_capacity(replace(LOAD, slo_goal=0.8)) > capacity()
    with pytest.raises(ConfigError, match="do not meet the SLO on a replica alone"):
        measure_capacity(replace(LOAD, options=replace(OPTIONS, slo={"ttft": 0.001})))
