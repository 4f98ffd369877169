"""FleetSpec: the peak takes a share of the fleet unless a rate or a trace is given; invalid fields are errors."""

from pathlib import Path

import pytest

from chairlift.bench.fleet_simulation.fleet_spec import PEAK_SHARE, FleetSpec
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig
from support_shares import for_each

MACHINE = SimReplicaSettings(config=SchedulerConfig(max_running_requests=8, max_prefill_tokens=256))


def test_the_peak_takes_a_share_of_the_fleet_without_a_rate() -> None:
    load, capacity = FleetSpec(max_replicas=20, machine=MACHINE, requests=4000).make()
    peak = max(load.arrivals.rates(load.arrivals.seconds / 20))
    assert peak == pytest.approx(PEAK_SHARE * 20 * capacity, rel=0.25)
    assert 1 <= load.options.initial_replicas < 8


@pytest.mark.full
def test_a_given_rate_and_a_trace_are_kept(tmp_path: Path) -> None:
    load, _ = FleetSpec(max_replicas=20, machine=MACHINE, workload="poisson", requests=900, rate=3.0).make()
    assert load.arrivals.seconds == 300.0
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f'{{"at": {at}, "prompt_tokens": 50, "output_tokens": 5}}\n' for at in range(40)))
    load, _ = FleetSpec(max_replicas=20, machine=MACHINE, workload=str(path), min_replicas=2).make()
    assert load.arrivals.seconds == 40.0 and load.options.initial_replicas == 2


@for_each(
    ("fields", "error"),
    [
        ({"max_replicas": 0, "min_replicas": 0}, "min_replicas must be between 0 and the 0 replicas"),
        ({"min_replicas": 5}, "min_replicas must be between 0 and the 4 replicas, got 5"),
        ({"slo_goal": 1.5}, "slo_goal must be above 0 and at most 1, got 1.5"),
        ({"cold_start_seconds": (9.0, 3.0)}, "cold_start must be one or two ascending numbers above 0"),
        ({"cold_start_seconds": (0.0, 3.0)}, "cold_start must be one or two ascending numbers above 0"),
        ({"workload": "weekly"}, "unknown workload 'weekly' of a fleet; available are poisson, bursts, diurnal"),
    ],
)
def test_invalid_input_is_an_error(fields: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        FleetSpec(**{"max_replicas": 4, **fields})  # type: ignore[arg-type]
