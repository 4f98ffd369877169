"""Decide how many replicas a pool needs, from its history; pure.

    rules or thresholds ──► need ──► idle, wake ──► floors ──► step limits ──► budget ──► which replicas go

The need comes first, and the budget has the last word.
"""

from collections.abc import Sequence
from dataclasses import replace

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.desired_replicas import Need, need_of_rules, need_of_thresholds
from chairlift.autoscaler.history import PoolHistory
from chairlift.autoscaler.limits.budget import cost_per_hour, limit_to_budget
from chairlift.autoscaler.limits.removal_order import removal_order
from chairlift.autoscaler.limits.schedule import scheduled_floor
from chairlift.autoscaler.limits.step_limits import limit_step
from chairlift.autoscaler.pool_load import finite
from chairlift.autoscaler.pool_sample import PoolSample, ReplicaSample
from chairlift.core.load_report import ReplicaState


def decide(history: PoolHistory, config: AutoscalerConfig, now: float) -> Decision:
    """Return what the pool is to have; the history is only read."""
    sample = history.newest
    if sample is None:
        return Decision(at_seconds=now, target=0, current=0, reason="missing_data")
    # A draining replica takes no request any more; it counts only where it costs money or can return.
    live = [each for each in sample.replicas if each.state in (ReplicaState.STARTING, ReplicaState.READY)]
    draining = [each for each in sample.replicas if each.state is ReplicaState.DRAINING]
    target = len(live)
    limits: tuple[str, ...] = ()
    if abs(now - sample.at_seconds) > config.windows.max_gap_seconds:
        need = Need(target=len(live), reason="missing_data")  # too old to act on, even for floors and budget
    else:
        need_of = need_of_rules if config.thresholds is None else need_of_thresholds
        need = _with_idle_and_wake(need_of(history, config, len(live), now), history, config, sample, now)
        target, limits = _with_floors(need, config, sample, len(live))
        target, limits = _with_limits(target, limits, history, config, live, draining, now)
    # Draining replicas that can return are taken back before others are started.
    num_started = max(0, target - len(live) - sum(each.can_return for each in draining))
    order = removal_order(live, config) if target < len(live) else live
    num_removed = max(0, len(live) - target)
    return Decision(
        at_seconds=now,
        target=target,
        current=len(live),
        remove=tuple(each.replica_id for each in order[:num_removed]),
        reason=need.reason,
        limits=limits,
        is_panic=need.is_panic,
        panic_until=need.panic_until,
        recommended=need.recommended,
        rules=need.rules,
        cost_per_hour=cost_per_hour([*order[num_removed:], *draining], config.budget)
        + num_started * config.budget.price(config.budget.replica_type),
    )


def _with_idle_and_wake(
    need: Need, history: PoolHistory, config: AutoscalerConfig, sample: PoolSample, now: float
) -> Need:
    """Take the step between no replica and one, which no rule decides."""
    current = sample.num_in_state(ReplicaState.STARTING, ReplicaState.READY)
    if current == 0 and (finite(sample.held_requests) or 0.0) > 0:
        return replace(need, target=max(1, need.target), reason="wake")
    # An external number may announce load that the pool cannot see yet; an unknown one may, too.
    is_wanted_outside = any(name.startswith("external:") and each.desired != 0 for name, each in need.rules.items())
    idle_since = history.idle_since
    is_idle = idle_since is not None and now - idle_since >= config.idle_seconds and history.is_idle_now
    if config.min_replicas == 0 and is_idle and not is_wanted_outside and not need.is_panic:
        return replace(need, target=0, reason="idle")
    return need


def _with_floors(need: Need, config: AutoscalerConfig, sample: PoolSample, current: int) -> tuple[int, tuple[str, ...]]:
    """Return the target of a need within the floors, and the names of those that raised it."""
    target, limits = need.target, []
    last = 1 if current > 0 and need.reason != "idle" else 0  # only an idle pool gives up its last replica
    if target < (floor := max(config.min_replicas, last)):
        target = floor
        limits.append("min_replicas")
    if target < (floor := scheduled_floor(config.schedules, sample.wall_seconds)):
        target = floor
        limits.append("schedule")
    return target, tuple(limits)


def _with_limits(
    target: int,
    limits: tuple[str, ...],
    history: PoolHistory,
    config: AutoscalerConfig,
    live: Sequence[ReplicaSample],
    draining: Sequence[ReplicaSample],
    now: float,
) -> tuple[int, tuple[str, ...]]:
    """Return the target within the step limits and the budget, and the names of all limits."""
    stepped = limit_step(target, len(live), history.changes, config, now)
    if stepped != target:
        limits = (*limits, "step")
    # Last, so that nothing raises the target above the budget.
    target, by_budget = limit_to_budget(stepped, live, draining, config)
    return target, (*limits, *by_budget)
