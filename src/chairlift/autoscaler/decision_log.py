"""DecisionLog: one log line for each decision that changes the pool, or that has another reason than the one before."""

import logging

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.pool_sample import SHOWN_STATES, PoolSample
from chairlift.autoscaler.rules.base import RuleResult

MIN_SECONDS = 60.0
"""Time between two lines without a change, as reasons may alternate, and between two lines on one change."""

log = logging.getLogger(__name__)


class DecisionLog:
    """Writes decisions of one pool."""

    def __init__(self) -> None:
        self._last_key: tuple[str, tuple[str, ...]] | None = None
        self._last_change: tuple[int, int] | None = None
        self._last_at = float("-inf")

    def write(self, decision: Decision, sample: PoolSample, config: AutoscalerConfig) -> None:
        """Write a decision if it says something new."""
        key, change = (decision.reason, decision.limits), (decision.current, decision.target)
        is_due = decision.at_seconds - self._last_at >= MIN_SECONDS
        if decision.has_change:
            is_written = change != self._last_change or is_due  # one that has no effect comes again at each step
        else:
            is_written = self._last_key is None or (key != self._last_key and is_due)
        if not is_written:
            return
        self._last_key, self._last_change, self._last_at = key, change, decision.at_seconds
        log.info("%s", decision_line(decision, sample, is_dry_run=config.is_dry_run))


def decision_line(decision: Decision, sample: PoolSample, *, is_dry_run: bool = False) -> str:
    """Return a decision in one line: what, why, and the numbers of the rules."""
    parts = [f"autoscaler: {decision.current} -> {decision.target} replicas, reason={decision.reason}"]
    if decision.limits:
        parts.append(f"limits={','.join(decision.limits)}")
    parts += [f"{state}={sample.num_in_state(state)}" for state in SHOWN_STATES]
    parts += [f"{name}={_number(value)}" for name, value in (("held", sample.held_requests),) if value]
    parts += [f"rule {name}: {_result(result)}" for name, result in decision.rules.items()]
    if decision.recommended is not None:
        parts.append(f"need={_number(decision.recommended)}")
    if decision.cost_per_hour:
        parts.append(f"cost_per_hour={_number(decision.cost_per_hour)}")
    if decision.remove:
        shown = ",".join(decision.remove[:10])
        parts.append(f"remove={shown}{'' if len(decision.remove) <= 10 else f' and {len(decision.remove) - 10} more'}")
    if is_dry_run:
        parts.append("dry run, nothing is changed")
    return "; ".join(parts)


def _result(result: RuleResult) -> str:
    numbers = " ".join(f"{name}={_number(value)}" for name, value in result.numbers.items())
    return f"need={_number(result.desired)}" + (f" ({numbers})" if numbers else "")


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
