"""Threshold mode: one replica more when a value is high for a time, one less when all values are low for a time."""

from collections.abc import Mapping, Sequence

from chairlift.autoscaler.config import ThresholdConfig
from chairlift.autoscaler.pool_load import PoolLoad
from chairlift.autoscaler.rules.base import RuleResult


def evaluate_thresholds(
    thresholds: ThresholdConfig,
    newest: PoolLoad,
    grow_loads: Sequence[PoolLoad],
    shrink_loads: Sequence[PoolLoad],
    current: int,
) -> Mapping[str, RuleResult]:
    """Return what each value wants: one replica more, as many as now, or one less; None where data is missing.

    The loads are those of `grow_seconds` and of `shrink_seconds`; they are empty where samples do not go back so far.
    """
    results = {}
    for name in ("cpu", "memory", "queue"):
        high, low = getattr(thresholds, f"{name}_high"), getattr(thresholds, f"{name}_low")
        if high is None:
            continue
        value = _read(name, newest)
        numbers = {"value": value, "high": high, "low": low}
        is_high = _are_beyond(grow_loads, name, high=high)
        is_low = _are_beyond(shrink_loads, name, low=low)
        desired = None if value is None else float(current + 1 if is_high else current - 1 if is_low else current)
        results[name] = RuleResult(desired, numbers)
    return results


def _are_beyond(loads: Sequence[PoolLoad], name: str, *, high: float | None = None, low: float | None = None) -> bool:
    """Return whether all values are above `high`, or with data of all replicas below `low`."""
    values = [_read(name, load, needs_all=low is not None) for load in loads]
    return bool(values) and all(
        value is not None and (high is None or value > high) and (low is None or value < low) for value in values
    )


def _read(name: str, load: PoolLoad, *, needs_all: bool = False) -> float | None:
    """Return the average of a value over the ready replicas that report it; None if none does, or not all do."""
    quantity = load.quantities["waiting_requests" if name == "queue" else f"{name}_ratio"]
    if quantity is None or not load.num_ready or (needs_all and quantity.num_missing):
        return None
    held = (load.pool_values["held_requests"] or 0.0) if name == "queue" else 0.0
    return (quantity.total + held) / (load.num_ready - quantity.num_missing)
