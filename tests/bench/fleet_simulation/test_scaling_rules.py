"""StaticRule, PlannedRule, AutoscalerRule, HpaRule: the number of replicas that each asks for over time."""

import numpy as np
import pytest

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.pool_sample import PoolSample, ReplicaSample
from chairlift.bench.fleet_simulation.scaling_rules import AutoscalerRule, HpaRule, PlannedRule, StaticRule
from chairlift.core.load_report import ReplicaState
from support_shares import for_each


def test_a_static_rule_never_changes() -> None:
    assert StaticRule(3).decide(PoolSample(at_seconds=9.0)).num_replicas == 3


def test_a_plan_is_followed_one_cold_start_ahead() -> None:
    rule = PlannedRule(np.array([1.0, 1.0, 5.0, 2.0]), window_seconds=10.0, cold_start_seconds=12.0)
    targets = [rule.decide(PoolSample(at_seconds=at)).num_replicas for at in (0.0, 2.0, 3.0, 25.0, 30.0, 99.0)]
    assert targets == [1, 1, 5, 5, 2, 0]


def test_the_autoscaler_remembers_its_samples_and_names_what_goes() -> None:
    rule = AutoscalerRule(AutoscalerConfig(max_replicas=8))

    def sample(at: float, running: float) -> PoolSample:
        replicas = tuple(
            ReplicaSample(
                replica_id=f"r{n}", state=ReplicaState.READY, age_seconds=1000.0, running_requests=running,
                waiting_requests=0, waiting_tokens=0, expected_wait_seconds=0.0, kv_usage_ratio=0.1,
                max_running_requests=16,
            )
            for n in range(3)
        )  # fmt: skip
        return PoolSample(at_seconds=at, replicas=replicas, held_requests=0, held_tokens=0)

    for at in range(0, 120, 2):
        busy = rule.decide(sample(float(at), 16.0))
    assert busy.num_replicas > 3 and busy.remove == ()
    for at in range(120, 1500, 2):
        idle = rule.decide(sample(float(at), 0.1))
    assert idle.num_replicas < 3 and len(idle.remove) == 3 - idle.num_replicas


def sample(at: float, num_ready: int, cpu: float, num_starting: int = 0) -> PoolSample:
    ready = [ReplicaSample(replica_id=f"r{n}", state=ReplicaState.READY, cpu_ratio=cpu) for n in range(num_ready)]
    starting = [ReplicaSample(replica_id=f"s{n}", state=ReplicaState.STARTING) for n in range(num_starting)]
    return PoolSample(at_seconds=at, replicas=(*ready, *starting))


def first_target(num_ready: int, cpu: float, num_starting: int = 0, most: int = 1000) -> int:
    return HpaRule(0.5, 1, most).decide(sample(0.0, num_ready, cpu, num_starting)).num_replicas


@for_each(
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
