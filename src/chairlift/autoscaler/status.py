"""AutoscalerStatus: the newest numbers of the autoscaler and its last decisions, for metrics and for operators."""

from collections import Counter, deque
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.history import PoolHistory
from chairlift.autoscaler.pool_sample import SHOWN_STATES, PoolSample

NUM_DECISIONS = 100
"""Decisions that are kept: those with a change, and the newest one."""


class FailureAction(StrEnum):
    """What failed in an interval."""

    SAMPLE = "sample"
    DECIDE = "decide"
    APPLY = "apply"


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerValues:
    """The values of the metrics `chairlift_autoscaler_*`.

    Attributes:
        target: replicas that the pool is to have.
        current: starting and ready replicas.
        replicas: replicas by state: starting, ready, draining.
        desired: replicas that each rule wants, by rule; without those that lack data.
        decisions: decisions so far by direction: up, down, none; one that had no effect and comes again counts once.
        failures: failures so far by action: sample, decide, apply.
        is_panic: the pool is in a panic.
        is_data_missing: the newest decision lacked data.
        held_requests: requests that wait for a first replica.
        cost_per_hour: what the replicas cost.
        cold_start_seconds: median time of a start.
    """

    target: int = 0
    current: int = 0
    replicas: dict[str, int] = field(default_factory=dict)
    desired: dict[str, float] = field(default_factory=dict)
    decisions: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    is_panic: bool = False
    is_data_missing: bool = False
    held_requests: float = 0.0
    cost_per_hour: float = 0.0
    cold_start_seconds: float = 0.0


class AutoscalerStatus:
    """What the controller shows of itself."""

    def __init__(self, config: AutoscalerConfig) -> None:
        self._decisions: deque[dict[str, Any]] = deque(maxlen=NUM_DECISIONS)
        self._newest: dict[str, Any] | None = None
        self._counts: Counter[str] = Counter({"up": 0, "down": 0, "none": 0})
        self._failures: Counter[str] = Counter({action.value: 0 for action in FailureAction})
        self._values = AutoscalerValues(cold_start_seconds=config.cold_start_seconds)

    def add_failure(self, action: FailureAction) -> None:
        """Count a failure."""
        self._failures[action.value] += 1

    def add_decision(
        self, decision: Decision, sample: PoolSample, history: PoolHistory, config: AutoscalerConfig
    ) -> None:
        """Take the numbers of a decision."""
        change = decision.target - decision.current
        newest = decision_as_json(decision, sample.wall_seconds, is_dry_run=config.is_dry_run)
        if decision.has_change and self._newest is not None and _change(newest) == _change(self._newest):
            self._decisions[-1] = newest  # it had no effect yet, or is a dry run
        else:
            self._counts["up" if change > 0 else "down" if change < 0 else "none"] += 1
            if decision.has_change:
                self._decisions.append(newest)
        self._newest = newest
        self._values = AutoscalerValues(
            target=decision.target,
            current=decision.current,
            replicas={state.value: sample.num_in_state(state) for state in SHOWN_STATES},
            desired={name: each.desired for name, each in decision.rules.items() if each.desired is not None},
            is_panic=decision.is_panic,
            is_data_missing=decision.reason == "missing_data",
            held_requests=sample.held_requests or 0.0,
            cost_per_hour=decision.cost_per_hour,
            cold_start_seconds=history.cold_start_seconds(),
        )

    def values(self) -> AutoscalerValues:
        """Return the values of the metrics."""
        return replace(self._values, decisions=dict(self._counts), failures=dict(self._failures))

    def as_json(self) -> dict[str, Any]:
        """Return the values, the newest decision and the last ones with a change, newest first, as JSON has them."""
        return {
            **asdict(self.values()),
            "newest_decision": self._newest,
            "decisions_with_change": list(reversed(self._decisions)),
        }


def _change(decision: dict[str, Any]) -> tuple[int, int]:
    return decision["current"], decision["target"]


def decision_as_json(decision: Decision, wall_seconds: float, *, is_dry_run: bool) -> dict[str, Any]:
    """Return a decision as JSON has it; `wall_seconds` is the time of its sample since 1970 UTC."""
    return {
        "at": wall_seconds,
        "current": decision.current,
        "target": decision.target,
        "remove": list(decision.remove),
        "reason": decision.reason,
        "limits": list(decision.limits),
        "is_panic": decision.is_panic,
        "recommended": decision.recommended,
        "cost_per_hour": decision.cost_per_hour,
        "is_dry_run": is_dry_run,
        "rules": {
            name: {"desired": each.desired, "numbers": dict(each.numbers)} for name, each in decision.rules.items()
        },
    }
