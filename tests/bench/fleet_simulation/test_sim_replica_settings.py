"""Tests of FleetMachine: which model serves, and requests that fit into no cache."""

from dataclasses import replace

import numpy as np
import pytest

from chairlift.bench.fleet_simulation.load.arrivals import Arrivals
from chairlift.bench.fleet_simulation.real_engine_model import EngineModel
from chairlift.bench.fleet_simulation.sim_replica_settings import FleetMachine
from chairlift.bench.fleet_simulation.simplified_engine_model import BatchModel
from chairlift.bench.simulation.sim_step_model import SMOL135_CPU
from chairlift.core.errors import InvalidRequest
from chairlift.engine.config import SchedulerConfig
from support_shares import for_each

ARRIVALS = Arrivals(
    name="two", at=np.array([0.0, 1.0]), prompt_tokens=np.array([100, 900]), output_tokens=np.array([20, 300]),
    seconds=2.0,
)  # fmt: skip


@for_each(
    ("machine", "model"),
    [
        (FleetMachine(), BatchModel),
        (FleetMachine(enable_prefix_caching=True), EngineModel),
        (FleetMachine(step_model=replace(SMOL135_CPU, noise=0.1)), EngineModel),
        (FleetMachine(config=SchedulerConfig(overlap=True)), EngineModel),
        (FleetMachine(config=SchedulerConfig(target_itl_ms=50.0)), EngineModel),
        (FleetMachine(config=SchedulerConfig(batching_policy="static")), EngineModel),
        (FleetMachine(config=SchedulerConfig(scheduling_policy="fair")), EngineModel),
    ],
)
def test_the_real_engine_serves_what_the_batch_model_does_not_follow(machine: FleetMachine, model: type) -> None:
    assert type(machine.make_model(0)) is model


def test_a_request_that_can_never_be_served_is_an_error() -> None:
    FleetMachine(num_blocks=75).check(ARRIVALS)
    with pytest.raises(InvalidRequest, match="has 1200 tokens, the limit is 1184"):
        FleetMachine(num_blocks=74).check(ARRIVALS)
    with pytest.raises(InvalidRequest, match="the limit is 800"):
        FleetMachine(config=SchedulerConfig(max_model_len=800)).check(ARRIVALS)
