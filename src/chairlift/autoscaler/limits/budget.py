"""Budget: lowers a target to what max_replicas and the cost per hour allow; nothing raises it again."""

import math
from collections.abc import Sequence

from chairlift.autoscaler.config import AutoscalerConfig, BudgetConfig
from chairlift.autoscaler.limits.removal_order import removal_order
from chairlift.autoscaler.pool_sample import ReplicaSample

ROUNDING = 1e-9
"""Share of a price by which a sum of prices may be too high, since floating-point sums are not exact."""


def cost_per_hour(replicas: Sequence[ReplicaSample], budget: BudgetConfig) -> float:
    """Return what these replicas cost."""
    return sum(budget.price(each.replica_type) for each in replicas)


def num_affordable_more(replicas: Sequence[ReplicaSample], budget: BudgetConfig) -> float:
    """Return how many replicas the cost per hour allows in addition to these; infinity without a limit."""
    price = budget.price(budget.replica_type)
    if budget.cost_per_hour is None or price <= 0:
        return math.inf
    return max(0, int((budget.cost_per_hour - cost_per_hour(replicas, budget)) / price + ROUNDING))


def limit_to_budget(
    target: int, live: Sequence[ReplicaSample], draining: Sequence[ReplicaSample], config: AutoscalerConfig
) -> tuple[int, tuple[str, ...]]:
    """Return the target that the budget allows, and the names of the limits that lowered it.

    `live` are the starting and ready replicas. Draining replicas take part of the budget where the pool would grow.
    They are on their way out, so that no other has to go for them. Those that can be taken back cost nothing more.
    """
    limits, present = [], [*live, *draining]
    num_new = target - len(live)
    num_returning = sum(each.can_return for each in draining)
    if num_new > 0 and (allowed := num_returning + max(0, config.max_replicas - len(present))) < num_new:
        num_new = allowed
        limits.append("max_replicas")
    if num_new > 0 and (affordable_more := num_returning + num_affordable_more(present, config.budget)) < num_new:
        num_new = int(affordable_more)
        limits.append("cost_per_hour")
    target = len(live) + num_new
    # Also a pool that does not grow may be above a limit that was lowered.
    if target > config.max_replicas:
        target = config.max_replicas
        limits.append("max_replicas")
    if (affordable := _num_affordable(live, config)) < target:
        target = int(affordable)
        limits.append("cost_per_hour")
    return target, tuple(dict.fromkeys(limits))


def _num_affordable(live: Sequence[ReplicaSample], config: AutoscalerConfig) -> float:
    """Return how many of the live replicas the cost per hour allows to keep; infinity if it allows all of them."""
    limit, cost = config.budget.cost_per_hour, cost_per_hour(live, config.budget)
    if limit is None or cost <= limit * (1 + ROUNDING):
        return math.inf
    num_kept = len(live)
    # In the order in which they would go, since their prices differ.
    for replica in removal_order(live, config):
        if cost <= limit * (1 + ROUNDING):
            break
        cost -= config.budget.price(replica.replica_type)
        num_kept -= 1
    return num_kept
