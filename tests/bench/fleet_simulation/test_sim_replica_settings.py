"""SimReplicaSettings: which model serves, EngineModel or SimplifiedEngineModel; a request too large for the cache."""

from dataclasses import replace

import numpy as np
import pytest

from chairlift.bench.fleet_simulation.load.arrivals import Arrivals
from chairlift.bench.fleet_simulation.real_engine_model import EngineModel
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.bench.fleet_simulation.simplified_engine_model import SimplifiedEngineModel
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
        (SimReplicaSettings(), SimplifiedEngineModel),
        (SimReplicaSettings(enable_prefix_caching=True), EngineModel),
        (SimReplicaSettings(step_model=replace(SMOL135_CPU, noise=0.1)), EngineModel),
        (SimReplicaSettings(config=SchedulerConfig(overlap=True)), EngineModel),
        (SimReplicaSettings(config=SchedulerConfig(target_itl_ms=50.0)), EngineModel),
        (SimReplicaSettings(config=SchedulerConfig(batching_policy="static")), EngineModel),
        (SimReplicaSettings(config=SchedulerConfig(scheduling_policy="fair")), EngineModel),
    ],
)
def test_the_real_engine_serves_what_the_batch_model_does_not_follow(machine: SimReplicaSettings, model: type) -> None:
    assert type(machine.make_model(0)) is model


def test_a_request_that_can_never_be_served_is_an_error() -> None:
    SimReplicaSettings(num_blocks=75).check(ARRIVALS)
    with pytest.raises(InvalidRequest, match="has 1200 tokens, the limit is 1184"):
        SimReplicaSettings(num_blocks=74).check(ARRIVALS)
    with pytest.raises(InvalidRequest, match="the limit is 800"):
        SimReplicaSettings(config=SchedulerConfig(max_model_len=800)).check(ARRIVALS)
