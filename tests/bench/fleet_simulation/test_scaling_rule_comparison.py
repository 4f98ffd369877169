"""compare_rules: searches meet the goal at the least cost, rules run in all variants, processes change nothing."""

from dataclasses import replace
from unittest.mock import MagicMock, Mock

import pytest

from chairlift.bench.fleet_simulation import scaling_rule_comparison
from chairlift.bench.fleet_simulation.load.synthetic_arrivals import ArrivalOptions, draw_arrivals
from chairlift.bench.fleet_simulation.scaling_rule_comparison import (
    HPA_CPU_RATIOS,
    RULE_NAMES,
    THRESHOLDS,
    compare_rules,
)
from chairlift.core.errors import ConfigError
from support_scaling_load import LOAD, OPTIONS, capacity


def test_every_rule_runs_and_the_searches_reach_the_goal_at_the_least_cost() -> None:
    arms = {arm.rule: arm for arm in compare_rules(LOAD, ("static", "oracle", "maximum"), capacity(), 1)}
    static, oracle, maximum = (arms[name].result for name in ("static", "oracle", "maximum"))
    assert maximum.mean_replicas == 8.0
    assert min(static.slo_attainment, oracle.slo_attainment) >= LOAD.slo_goal
    assert static.peak_replicas == static.mean_replicas < 8
    fewer = replace(LOAD, options=replace(OPTIONS, max_replicas=static.peak_replicas - 1))
    assert compare_rules(fewer, ("maximum",), capacity(), 1)[0].result.slo_attainment < LOAD.slo_goal
    assert oracle.replica_seconds < static.replica_seconds


def test_an_interrupt_ends_the_processes_of_the_simulations_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    other, child = Mock(), Mock()
    monkeypatch.setattr(scaling_rule_comparison, "active_children", Mock(side_effect=[[other], [other, child]]))
    pool = MagicMock()
    pool.return_value.__enter__.return_value.map.side_effect = KeyboardInterrupt
    pool.return_value.__exit__.return_value = False
    monkeypatch.setattr(scaling_rule_comparison, "ProcessPoolExecutor", pool)
    with pytest.raises(KeyboardInterrupt):
        compare_rules(LOAD, ("static", "maximum"), 1.0, 2)
    assert child.terminate.called and not other.terminate.called


@pytest.mark.full
def test_rules_run_in_all_variants_and_processes_change_nothing() -> None:
    small = replace(LOAD, arrivals=draw_arrivals(
        ArrivalOptions(kind="poisson", rate=4.0, requests=20, period_seconds=9.0, prompt_tokens=99, output_tokens=9)
    ))  # fmt: skip
    names = ("autoscaler", "hpa", "threshold")
    arms = compare_rules(small, names, capacity(), 1)
    assert [arm.rule for arm in arms] == [
        "autoscaler",
        *["hpa"] * len(HPA_CPU_RATIOS),
        *["threshold"] * len(THRESHOLDS),
    ]
    assert len({arm.parameter for arm in arms}) == len(arms)
    two = compare_rules(small, ("autoscaler", "static"), capacity(), 2)
    assert two[0] == arms[0] and two == compare_rules(small, ("autoscaler", "static"), capacity(), 1)


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ConfigError, match=f"unknown scaling rule 'keda'; available are {', '.join(RULE_NAMES)}"):
        compare_rules(LOAD, ("keda",), 1.0, 1)
