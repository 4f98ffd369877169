"""FleetResult: which requests are good, what replicas cost within the load, and which changes are reversals."""

import pytest

from chairlift.bench.fleet_simulation.fleet_replica import FleetReplica
from chairlift.bench.fleet_simulation.fleet_result import REVERSAL_SECONDS, FleetResult
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest
from support_shares import for_each


@for_each(
    ("slo", "is_good"),
    [
        ({}, True), ({"ttft": 2, "tpot": 0.5, "itl": 3, "e2e": 6}, True), ({"ttft": 1.9}, False),
        ({"tpot": 0.49}, False), ({"itl": 2.9}, False), ({"e2e": 5.9}, False),
    ],
)  # fmt: skip
def test_a_request_is_good_within_every_limit(slo: dict[str, float], is_good: bool) -> None:
    result = FleetResult(slo, 100.0)
    request = SimRequest(0, 1.0, 10, 9, first_token_at=3.0, longest_gap_seconds=3.0, cached_tokens=4)
    assert result.record_request(request, 7.0) == (7.0, 2.0, 0.5)
    assert result.slo_attainment == float(is_good) and result.hit_rate == 0.4


def test_replicas_cost_from_their_start_to_their_end_within_the_load() -> None:
    result = FleetResult({}, 100.0)
    for started_at, ended_at in ((0.0, 40.0), (90.0, 300.0), (120.0, 130.0)):
        replica = FleetReplica(
            f"r{started_at}", SimReplicaSettings().make_model(0), started_at, prefill_speed=1.0, max_running=1
        )
        result.record_replica(replica, ended_at)
    assert result.replica_seconds == 50.0 and result.mean_replicas == 0.5
    assert result.report(3.6)["cost"] == pytest.approx(0.05)


def test_a_change_in_the_other_direction_soon_after_is_a_reversal() -> None:
    result = FleetResult({}, 10_000.0)
    for now, current, target in ((0, 2, 4), (10, 4, 4), (20, 4, 3), (30, 3, 2), (31 + REVERSAL_SECONDS, 2, 5)):
        result.record_scaling(now, current, target)
    assert (result.growths, result.shrinkings, result.reversals, result.peak_replicas) == (2, 2, 1, 5)
