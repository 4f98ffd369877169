"""LOAD, capacity: the load of a small simulated fleet over a day, and what one of its replicas can serve."""

from functools import cache

from chairlift.bench.fleet_simulation.fleet_run import FleetOptions
from chairlift.bench.fleet_simulation.load.synthetic_arrivals import ArrivalOptions, draw_arrivals
from chairlift.bench.fleet_simulation.replica_capacity_search import measure_capacity
from chairlift.bench.fleet_simulation.scaling_rule_comparison import FleetLoad
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
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
