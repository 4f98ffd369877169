"""Need: how many replicas the load asks for, before floors and budget, by rules or by thresholds; pure.

short window ≥ panic_factor × ready ──► panic: follow the short window, never shrink
both windows above the tolerance    ──► grow
data missing                        ──► hold
otherwise                           ──► shrink to what holds the highest need of the stabilisation time
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from chairlift.autoscaler.config import AutoscalerConfig, ThresholdConfig
from chairlift.autoscaler.history import Change, PoolHistory
from chairlift.autoscaler.limits.headroom import num_with_headroom
from chairlift.autoscaler.rules.base import RuleResult
from chairlift.autoscaler.rules.build_rules import build_rules
from chairlift.autoscaler.rules.threshold_mode import evaluate_thresholds
from chairlift.core.load_report import ReplicaState

MAX_REVERSAL_FACTOR = 4.0
"""Longest time without shrinking, as a multiple of `reversal_seconds`."""

MAX_NEED = 1e9
"""Largest need: a number from outside may be out of all bounds, and the budget has the last word anyway."""

STALE_START_FACTOR = 2.0
"""In threshold mode a replica that starts for this many cold starts no longer stops the pool from growing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the load asks for.

    Attributes:
        target: replicas.
        reason: why, as of Decision.
        recommended: as of Decision.
        rules: as of Decision.
        is_panic: as of Decision.
        panic_until: as of Decision.
    """

    target: int
    reason: str
    recommended: float | None = None
    rules: Mapping[str, RuleResult] = field(default_factory=dict)
    is_panic: bool = False
    panic_until: float = 0.0


def need_of_rules(history: PoolHistory, config: AutoscalerConfig, current: int, now: float) -> Need:
    """Return the need by target tracking; the history has a sample."""
    windows, capacity = config.windows, history.capacity()
    short_window = history.window(windows.panic_seconds, capacity)
    stable_window = history.window(windows.stable_seconds, capacity)
    rules = build_rules(config.targets, windows)
    short = {name: rule.evaluate(short_window) for name, rule in rules.items()}
    stable = {
        name: short[name] if rule.uses_short_window else rule.evaluate(stable_window) for name, rule in rules.items()
    }
    short_need, stable_need = _highest(short), _highest(stable)
    is_missing = not rules or any(each.desired is None for each in (*short.values(), *stable.values()))
    is_triggered = short_need > 0 and short_need >= windows.panic_factor * short_window.newest.num_ready
    panic_until = now + windows.stable_seconds if is_triggered else history.panic_until
    is_panic = now < panic_until
    # Without a panic both windows must agree: a short peak starts no replica.
    growth = short_need if is_panic else min(short_need, stable_need)
    need = Need(
        target=current,
        reason="panic" if is_panic else "missing_data" if is_missing else "steady",
        recommended=None if is_missing else max(short_need, stable_need),
        rules=short if is_panic else stable,
        is_panic=is_panic,
        panic_until=panic_until if is_panic else 0.0,
    )
    if growth > current * (1 + windows.tolerance):
        return _changed(need, _ceil(growth), need.reason if is_panic else "growth")
    # What is missing may be load, so the pool does not shrink without it.
    if is_panic or need.recommended is None:
        return need
    return _shrunk(need, need.recommended, history, config, now)


def _shrunk(need: Need, recommended: float, history: PoolHistory, config: AutoscalerConfig, now: float) -> Need:
    """Return the need after shrinking as far as all checks allow."""
    windows = config.windows

    def num_for(replicas: float) -> int:
        return num_with_headroom(replicas, margin=windows.shrink_margin, tolerance=windows.tolerance)

    if num_for(recommended) >= need.target:
        return need
    highest = history.highest_recommended(now)
    if highest is None or (stabilised := num_for(max(recommended, highest))) >= need.target:
        return _changed(need, need.target, "stabilisation")
    if is_reversal_held(history.changes, windows.reversal_seconds, now):
        return _changed(need, need.target, "reversal_hold")
    return _changed(need, stabilised, "shrink")


def is_reversal_held(changes: Iterable[Change], reversal_seconds: float, now: float) -> bool:
    """Return whether the pool may not shrink since its last growth took a recent shrinking back.

    The time without shrinking doubles with each growth in a row that does so, MAX_REVERSAL_FACTOR times at most. A
    load that comes and goes thus does not start and stop replicas for ever.
    """
    factor, last_growth_at = 0.0, 0.0
    for before, after in pairwise(changes):
        if after.is_growth and not before.is_growth:
            is_regret = after.at_seconds - before.at_seconds <= reversal_seconds
            factor = min(max(1.0, 2 * factor), MAX_REVERSAL_FACTOR) if is_regret else 0.0
        if after.is_growth:
            last_growth_at = after.at_seconds
    return now - last_growth_at < factor * reversal_seconds


def need_of_thresholds(history: PoolHistory, config: AutoscalerConfig, current: int, now: float) -> Need:
    """Return the need by thresholds; the history has a sample, and the configuration has thresholds."""
    thresholds = config.thresholds or ThresholdConfig()
    newest = history.newest
    assert newest is not None
    load = history.window(0.0, history.capacity()).newest
    grow_loads = history.loads_since(newest.at_seconds - thresholds.grow_seconds)
    shrink_loads = history.loads_since(newest.at_seconds - thresholds.shrink_seconds)
    rules = evaluate_thresholds(thresholds, load, grow_loads, shrink_loads, current)
    need = Need(target=current, reason="steady", rules=rules)
    desired = [each.desired for each in rules.values()]
    can_grow = any(each is not None and each > current for each in desired)
    # One rule is enough to grow, but all must agree to shrink; one without data does not.
    can_shrink = current > 0 and bool(desired) and all(each is not None and each < current for each in desired)
    if not can_grow and not can_shrink:
        return _changed(need, current, "missing_data") if None in desired or not desired else need
    if history.changes and now - history.changes[-1].at_seconds < thresholds.cooldown_seconds:
        return _changed(need, current, "cooldown")
    if can_shrink:
        return _changed(need, current - 1, "shrink")
    limit = STALE_START_FACTOR * history.cold_start_seconds()
    if any(each.state is ReplicaState.STARTING and each.age_seconds < limit for each in newest.replicas):
        return _changed(need, current, "starting")  # what comes may be enough
    return _changed(need, current + 1, "growth")


def _highest(results: Mapping[str, RuleResult]) -> float:
    return min(MAX_NEED, max((each.desired for each in results.values() if each.desired is not None), default=0.0))


def _changed(need: Need, target: int, reason: str) -> Need:
    return replace(need, target=target, reason=reason)


def _ceil(need: float) -> int:
    return math.ceil(need - 1e-9)
