"""Rule: the interface of a rule, and RuleResult: how many replicas it wants, with the numbers that led to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from chairlift.autoscaler.load_and_demand_window import LoadWindow
from chairlift.autoscaler.pool_load import Quantity

NO_NUMBERS: Mapping[str, float | None] = {}


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule.

    Attributes:
        desired: replicas that the load needs by this rule, as a fraction; None when data is missing.
        numbers: the measured numbers by name, for logs; None for a missing one.
    """

    desired: float | None
    numbers: Mapping[str, float | None] = field(default_factory=lambda: NO_NUMBERS)


class Rule(Protocol):
    """Computes from one signal how many replicas a load needs.

    Attributes:
        uses_short_window: the rule judges the short window at all times, since its signal is smooth already.
    """

    uses_short_window: ClassVar[bool]

    def evaluate(self, window: LoadWindow) -> RuleResult:
        """Return the need of the load of a window; at a load that a pool of any size cannot hold, it grows on."""
        ...


def with_missing(need: float, num_missing: float, num_ready: float) -> float:
    """Return a need that replicas without data neither raise above the ready ones nor lower below them.

    A replica without data counts as idle where the pool would grow, and as busy at its target where it would shrink.
    """
    return max(need, min(num_ready, need + num_missing))


def has_no_source(window: LoadWindow, quantity: Quantity | None) -> bool:
    """Return whether a quantity is unknown: no replica reports it, or none is ready and so none could."""
    return quantity is None or window.newest.num_ready == 0
