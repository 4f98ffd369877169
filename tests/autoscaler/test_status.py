"""AutoscalerStatus: values for metrics, and decisions as JSON."""

import json

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.history import PoolHistory
from chairlift.autoscaler.rules.base import RuleResult
from chairlift.autoscaler.status import NUM_DECISIONS, AutoscalerStatus, FailureAction
from support_autoscaler import DRAINING, STARTING, pool, ready, silent

CONFIG = AutoscalerConfig()
SAMPLE = pool(0, ready("a"), silent("b", STARTING), silent("c", DRAINING), held_requests=3.0, wall_seconds=1e9)


def decision(target: int, reason: str = "growth") -> Decision:
    rules = {"concurrency": RuleResult(2.5, {"running": 9.0}), "cpu": RuleResult(None)}
    return Decision(
        at_seconds=0, current=2, target=target, reason=reason, rules=rules, cost_per_hour=4.0, is_panic=True
    )  # fmt: skip


def test_the_values_of_the_metrics() -> None:
    status = AutoscalerStatus(CONFIG)
    assert status.values().decisions == {"up": 0, "down": 0, "none": 0}
    for target in (3, 3, 1, 3, 2):
        status.add_decision(decision(target), SAMPLE, PoolHistory(CONFIG), CONFIG)
    status.add_failure(FailureAction.APPLY)
    values = status.values()
    assert (values.target, values.current, values.cost_per_hour, values.held_requests) == (2, 2, 4.0, 3.0)
    assert values.replicas == {"starting": 1, "ready": 1, "draining": 1}
    assert values.desired == {"concurrency": 2.5}, "a rule without data has no value"
    assert values.decisions == {"up": 2, "down": 1, "none": 1}, "the second of two equal ones had no effect"
    assert values.failures == {"sample": 0, "decide": 0, "apply": 1}
    assert (values.is_panic, values.is_data_missing, values.cold_start_seconds) == (True, False, 60.0)
    status.add_decision(decision(2, "missing_data"), SAMPLE, PoolHistory(CONFIG), CONFIG)
    assert status.values().is_data_missing


def test_decisions_with_a_change_are_kept_newest_first_as_json() -> None:
    status = AutoscalerStatus(CONFIG)
    assert json.loads(json.dumps(status.as_json()))["newest_decision"] is None
    for target in (*range(3, NUM_DECISIONS + 9), 2):
        status.add_decision(decision(target), SAMPLE, PoolHistory(CONFIG), CONFIG)
    shown = json.loads(json.dumps(status.as_json()))
    assert shown["newest_decision"]["target"] == 2
    assert len(shown["decisions_with_change"]) == NUM_DECISIONS
    newest = shown["decisions_with_change"][0]
    assert (newest["target"], newest["at"], newest["is_dry_run"]) == (NUM_DECISIONS + 8, 1e9, False)
    status = AutoscalerStatus(CONFIG)
    for target in (3, 3, 3):
        status.add_decision(decision(target), SAMPLE, PoolHistory(CONFIG), CONFIG)
    assert len(status.as_json()["decisions_with_change"]) == 1
    assert newest["rules"]["concurrency"] == {"desired": 2.5, "numbers": {"running": 9.0}}
