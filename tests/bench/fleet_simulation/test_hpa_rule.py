"""Tests of HpaRule: tolerance, replicas that start, the limit of growth and the stabilisation."""

import pytest

from chairlift.autoscaler.signals import PoolSample, ReplicaSample
from chairlift.bench.fleet_simulation.hpa_rule import HpaRule
from chairlift.core.load_report import ReplicaState


def sample(at: float, num_ready: int, cpu: float, num_starting: int = 0) -> PoolSample:
    ready = [ReplicaSample(replica_id=f"r{n}", state=ReplicaState.READY, cpu_ratio=cpu) for n in range(num_ready)]
    starting = [ReplicaSample(replica_id=f"s{n}", state=ReplicaState.STARTING) for n in range(num_starting)]
    return PoolSample(at_seconds=at, replicas=(*ready, *starting))


def first_target(num_ready: int, cpu: float, num_starting: int = 0, most: int = 1000) -> int:
    return HpaRule(0.5, 1, most).decide(sample(0.0, num_ready, cpu, num_starting)).num_replicas


@pytest.mark.parametrize(
    ("num_ready", "cpu", "target"),
    [(10, 0.5, 10), (10, 0.54, 10), (10, 0.46, 10), (10, 0.56, 12), (10, 0.44, 9), (3, 1.0, 6), (10, 0.0, 1)],
)
def test_the_desired_number_is_in_proportion_outside_of_the_tolerance(num_ready: int, cpu: float, target: int) -> None:
    assert first_target(num_ready, cpu) == target


def test_replicas_that_start_count_as_unused_when_the_pool_is_to_grow() -> None:
    assert first_target(10, 0.9, num_starting=5) == 18
    assert first_target(10, 0.6, num_starting=5) == 15  # 0.4 with them, below the target: no growth and no shrinking
    assert first_target(10, 0.2, num_starting=5) == 4


@pytest.mark.parametrize(("num_ready", "target"), [(1, 5), (2, 6), (10, 20)])
def test_it_grows_by_four_replicas_or_by_their_number_at_most(num_ready: int, target: int) -> None:
    rule = HpaRule(0.01, 1, 1000)
    assert rule.decide(sample(0.0, num_ready, 1.0)).num_replicas == target


def test_the_limits_hold() -> None:
    assert first_target(10, 1.0, most=12) == 12
    assert HpaRule(0.5, 3, 9).decide(sample(0.0, 5, 0.0)).num_replicas == 3
    assert HpaRule(0.5, 1, 9).decide(sample(0.0, 0, 0.0, num_starting=2)).num_replicas == 2


def test_it_shrinks_to_the_highest_desired_number_of_five_minutes_and_looks_every_15_seconds() -> None:
    rule = HpaRule(0.5, 1, 100)
    assert rule.decide(sample(0.0, 10, 0.5)).num_replicas == 10
    assert rule.decide(sample(1.0, 10, 1.0)).num_replicas == 10  # not yet
    targets = {at: rule.decide(sample(at, 10, 0.2)).num_replicas for at in range(15, 331, 15)}
    assert {target for at, target in targets.items() if at < 300} == {10}
    assert {target for at, target in targets.items() if at >= 300} == {4}
