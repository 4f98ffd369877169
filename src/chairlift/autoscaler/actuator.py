"""Actuator: the interface through which the controller measures and changes a pool."""

from typing import Protocol

from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.signals import PoolSample


class Actuator(Protocol):
    """Measures and changes one pool. Both may raise any ChairliftError or OSError; the controller tries again."""

    async def sample(self) -> PoolSample:
        """Return the pool as it is now; `at_seconds` is of the controller's clock. May be cancelled at any time."""
        ...

    async def apply(self, decision: Decision) -> None:
        """Have `decision.target` replicas and drain those of `decision.remove`; returns when that is noted.

        Applying the same decision twice starts nothing twice.
        """
        ...
