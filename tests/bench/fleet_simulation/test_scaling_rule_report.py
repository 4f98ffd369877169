"""build_fleet_report, fleet_table: the autoscaler's first variant against other rules at equal cost and equal SLO."""

import json
from typing import Any

import numpy as np
import pytest

from chairlift.bench.fleet_simulation.fleet_result import FleetResult
from chairlift.bench.fleet_simulation.fleet_run import FleetOptions
from chairlift.bench.fleet_simulation.load.arrivals import Arrivals
from chairlift.bench.fleet_simulation.scaling_rule_comparison import FleetArm, FleetLoad
from chairlift.bench.fleet_simulation.scaling_rule_report import build_fleet_report, fleet_table
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest

ARRIVALS = Arrivals(
    name="two", at=np.array([0.0, 90.0]), prompt_tokens=np.array([10, 20]), output_tokens=np.array([3, 4]),
    seconds=120.0,
)  # fmt: skip


def arm(rule: str, parameter: str, hours: float, num_good: int) -> FleetArm:
    """Return an arm of 100 requests of which some are good."""
    result = FleetResult({"ttft": 1.0}, 120.0)
    for number in range(100):
        result.record_request(SimRequest(number, 0.0, 10, 2, first_token_at=0.5 if number < num_good else 2.0), 3.0)
    result.replica_seconds = hours * 3600
    return FleetArm(rule, parameter, result)


def build(*arms: FleetArm) -> dict[str, Any]:
    load = FleetLoad(arrivals=ARRIVALS, options=FleetOptions(slo={"ttft": 1.0}, max_replicas=9))
    return build_fleet_report(load, arms, 2.5, 3.0)


def test_the_first_variant_of_the_autoscaler_is_compared_at_equal_cost_and_at_equal_slo() -> None:
    content = build(
        arm("autoscaler", "a", 10.0, 98), arm("autoscaler", "b", 20.0, 100), arm("static", "", 16.0, 99),
        arm("oracle", "", 8.0, 99), arm("hpa", "dear", 30.0, 99), arm("hpa", "good", 14.0, 98),
        arm("hpa", "cheap", 10.1, 80), arm("hpa", "cheaper", 9.0, 70), arm("threshold", "bad", 50.0, 90),
    )  # fmt: skip
    assert content["savings"] == pytest.approx({"static": 1 - 10 / 16, "oracle": 1 - 10 / 8})
    assert content["against"]["hpa"]["at_equal_cost"]["parameter"] == "cheap"
    assert content["against"]["hpa"]["at_equal_slo"]["parameter"] == "good"
    assert content["against"]["threshold"] == {"at_equal_cost": None, "at_equal_slo": None}
    table = "\n".join(fleet_table(content))
    for words in (
        "2 requests (two) in 120 s",
        "37.5% fewer",
        "25.0% more",
        "hpa at equal cost: SLO 80.00%",
        "no variant",
    ):
        assert words in table
    headings, *_ = narrow = [line for line in fleet_table(content, 80) if line[:10].split()[0] in ("rule", "hpa")]
    assert headings.split()[:4] == ["rule", "parameter", "SLO", "hours"] and headings.endswith("ttft p99  tpot p99")
    assert max(map(len, narrow)) <= 80 and "rev." not in headings and "  rev.  " in table
    assert json.loads(json.dumps(content))["load"]["peak_requests_per_second"] == pytest.approx(1 / 60)


def test_other_rules_are_reported_alone() -> None:
    content = build(arm("maximum", "9 replicas", 2.0, 100))
    assert content["savings"] == content["against"] == {}
    assert content["arms"][0]["cost"] == 6.0 and "maximum" in "\n".join(fleet_table(content))
