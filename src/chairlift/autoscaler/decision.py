"""Decision: how many replicas a pool is to have, which ones go, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.autoscaler.rules.base import RuleResult

JsonScalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a pool is to have.

    Attributes:
        at_seconds: monotonic time of the decision.
        target: starting and ready replicas that the pool is to have; draining ones are on their way out.
        current: starting and ready replicas that the newest sample has.
        remove: ids of the replicas to drain and stop, in this order; empty unless target < current.
        reason: one word for what decided, such as "load", "panic", "missing_data"; it is a bounded set.
        limits: names of the limits that changed the target.
        is_panic: the pool is in a panic, in which it does not shrink.
        panic_until: monotonic time at which the panic ends, if it is one.
        recommended: replicas that the load needs, as the stabilisation keeps it; None when data is missing.
        rules: results of the rules by name, those of the window that decided.
        cost_per_hour: what the replicas cost after the decision, draining ones included.
    """

    at_seconds: float
    target: int
    current: int
    remove: tuple[str, ...] = ()
    reason: str = ""
    limits: tuple[str, ...] = ()
    is_panic: bool = False
    panic_until: float = 0.0
    recommended: float | None = None
    rules: Mapping[str, RuleResult] = field(default_factory=dict)
    cost_per_hour: float = 0.0

    @property
    def has_change(self) -> bool:
        """Whether the pool is to change."""
        return self.target != self.current
