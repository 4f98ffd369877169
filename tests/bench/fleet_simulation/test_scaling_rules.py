"""Tests of the rules: a constant number, a plan ahead of time, and the production autoscaler."""

import numpy as np

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.signals import PoolSample, ReplicaSample
from chairlift.bench.fleet_simulation.scaling_rules import AutoscalerRule, PlannedRule, StaticRule
from chairlift.core.load_report import ReplicaState


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
