"""Budget: replicas and cost, with draining replicas and types of different prices."""

import pytest

from chairlift.autoscaler.config import AutoscalerConfig, BudgetConfig
from chairlift.autoscaler.limits.budget import cost_per_hour, limit_to_budget, num_affordable_more
from support_autoscaler import DRAINING, ready, silent
from support_shares import for_each

PRICES = {"small": 1.0, "large": 4.0}


def config(cost: float | None = None, max_replicas: int = 5) -> AutoscalerConfig:
    budget = BudgetConfig(cost_per_hour=cost, prices=PRICES, replica_type="small")
    return AutoscalerConfig(max_replicas=max_replicas, budget=budget)


@for_each(
    ("target", "types", "num_draining", "cost", "expected"),
    [
        (4, ["small"] * 3, 0, None, (4, ())),
        (9, ["small"] * 3, 0, None, (5, ("max_replicas",))),
        (5, ["small"] * 3, 1, None, (4, ("max_replicas",))),
        (5, ["small"] * 3, 4, None, (3, ("max_replicas",))),
        (7, ["small"] * 7, 0, None, (5, ("max_replicas",))),
        (3, ["small"] * 3, 9, None, (3, ())),  # draining ones make no other replica go
        (5, ["small"] * 3, 0, 4.5, (4, ("cost_per_hour",))),
        (4, ["small"] * 3, 1, 4.5, (3, ("cost_per_hour",))),
        (5, ["large", "small"], 0, 6.0, (3, ("cost_per_hour",))),
        (3, ["large", "large", "small"], 0, 6.0, (2, ("cost_per_hour",))),
        (2, ["large", "large", "small"], 0, 6.0, (2, ())),
        (3, ["unknown", "small"], 0, 6.0, (3, ())),  # it counts as the dearest: 4 + 1 + 1
        (4, ["unknown", "small"], 0, 6.0, (3, ("cost_per_hour",))),
        (9, ["small"] * 3, 0, 4.0, (4, ("max_replicas", "cost_per_hour"))),
    ],
)
def test_the_target_within_the_budget(
    target: int, types: list[str], num_draining: int, cost: float | None, expected: tuple[int, tuple[str, ...]]
) -> None:
    live = [ready(f"r{index}", replica_type=each) for index, each in enumerate(types)]
    draining = [silent(f"d{index}", DRAINING, replica_type="small") for index in range(num_draining)]
    assert limit_to_budget(target, live, draining, config(cost)) == expected


def test_sums_of_decimal_prices_reach_the_limit_exactly() -> None:
    budget = BudgetConfig(cost_per_hour=0.3, prices={"": 0.1})
    live = [ready("a"), ready("b")]
    assert limit_to_budget(3, live, [], AutoscalerConfig(budget=budget)) == (3, ())
    assert limit_to_budget(3, [*live, ready("c")], [], AutoscalerConfig(budget=budget)) == (3, ())
    assert cost_per_hour(live, budget) == pytest.approx(0.2)


@pytest.mark.parametrize(("target", "num_draining", "cost", "expected"), [
    (5, 2, None, (5, ())), (6, 2, None, (5, ("max_replicas",))), (4, 2, 5.0, (4, ())),
    (5, 2, 4.0, (5, ())),  # what drains is paid for already
    (9, 1, 4.0, (4, ("max_replicas", "cost_per_hour"))),
])  # fmt: skip
def test_a_draining_replica_that_can_be_taken_back_costs_nothing_more(
    target: int, num_draining: int, cost: float | None, expected: tuple[int, tuple[str, ...]]
) -> None:
    live = [ready(f"r{index}", replica_type="small") for index in range(3)]
    draining = [silent(f"d{index}", DRAINING, replica_type="small", can_return=True) for index in range(num_draining)]
    assert limit_to_budget(target, live, draining, config(cost)) == expected


def test_what_the_cost_allows_in_addition() -> None:
    budget = config(4.5).budget
    assert num_affordable_more([ready("a", replica_type="small")], budget) == 3
    assert num_affordable_more([ready("a", replica_type="large")] * 2, budget) == 0
    assert num_affordable_more([ready("a")], config().budget) == float("inf")
