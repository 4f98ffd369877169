"""Budget: lowers a target to what max_replicas and the cost per hour allow; nothing raises it again."""

import math
from collections.abc import Sequence

from chairlift.autoscaler.config import AutoscalerConfig, BudgetConfig
from chairlift.autoscaler.limits.removal import removal_order
from chairlift.autoscaler.signals import ReplicaSample

ROUNDING = 1e-9
"""Share of a price by which a sum of prices may be too high, since floating-point sums are not exact."""


def cost_per_hour(replicas: Sequence[ReplicaSample], budget: BudgetConfig) -> float:
    """Return what these replicas cost."""
    return sum(budget.price(each.replica_type) for each in replicas)


def limit_to_budget(
    target: int, live: Sequence[ReplicaSample], draining: Sequence[ReplicaSample], config: AutoscalerConfig
) -> tuple[int, tuple[str, ...]]:
    """Return the target that the budget allows, and the names of the limits that lowered it.

    `live` are the starting and ready replicas. Draining replicas take part of the budget where the pool would grow.
    They are on their way out, so that no other has to go for them.
    """
    budget, limits = config.budget, []
    num_new = target - len(live)
    if num_new > 0 and (allowed := max(0, config.max_replicas - len(live) - len(draining))) < num_new:
        num_new = allowed
        limits.append("max_replicas")
    price = budget.price(budget.replica_type)
    if num_new > 0 and budget.cost_per_hour is not None and price > 0:
        free = budget.cost_per_hour - cost_per_hour([*live, *draining], budget)
        if (allowed := max(0, int(free / price + ROUNDING))) < num_new:
            num_new = allowed
            limits.append("cost_per_hour")
    target = len(live) + num_new
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
    for replica in removal_order(live, config):
        if cost <= limit * (1 + ROUNDING):
            break
        cost -= config.budget.price(replica.replica_type)
        num_kept -= 1
    return num_kept
