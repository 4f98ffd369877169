"""limit_step: bounds the target by how much the pool has changed within a period, as Kubernetes' HPA does."""

import math
from collections.abc import Iterable

from chairlift.autoscaler.config import AutoscalerConfig, StepLimit
from chairlift.autoscaler.history import Change


def limit_step(target: int, current: int, changes: Iterable[Change], config: AutoscalerConfig, now: float) -> int:
    """Return the target within the most generous of the limits for its direction."""
    changes = tuple(changes)
    if target > current and config.growth_limits:
        return min(target, max(_highest(current, changes, each, now) for each in config.growth_limits))
    if target < current and config.shrink_limits:
        return max(target, min(_lowest(current, changes, each, now) for each in config.shrink_limits))
    return target


def _highest(current: int, changes: tuple[Change, ...], limit: StepLimit, now: float) -> int:
    grown = sum(
        each.target - each.current
        for each in changes
        if each.is_growth and now - each.at_seconds < limit.period_seconds
    )
    # The limit counts from the size at the beginning of the period, so what has grown since is used up.
    start = max(0, current - grown)
    by_ratio = start + max(1, math.floor(start * limit.ratio)) if limit.ratio else 0  # an empty pool grows, too
    return max(current, start + limit.num_replicas, by_ratio)


def _lowest(current: int, changes: tuple[Change, ...], limit: StepLimit, now: float) -> int:
    shrunk = sum(
        each.current - each.target
        for each in changes
        if not each.is_growth and now - each.at_seconds < limit.period_seconds
    )
    start = current + shrunk
    by_ratio = start - max(1, math.floor(start * limit.ratio)) if limit.ratio else current
    return min(current, start - limit.num_replicas, by_ratio)
