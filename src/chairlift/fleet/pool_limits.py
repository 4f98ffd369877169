"""PoolLimits: what the actuator of a pool may do at most, in updates and replacements too."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.autoscaler.config import BudgetConfig
from chairlift.autoscaler.limits.budget import num_affordable_more
from chairlift.autoscaler.pool_sample import ReplicaSample


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Limits of the actuator.

    Attributes:
        max_replicas: replicas that exist at most at a time, those that start or drain included.
        budget: what they may cost together, also during an update.
        drain_seconds: time after which a draining replica is stopped though requests are open there.
        has_versions: whether the cluster starts replicas of a ReplicaSpec, so that others are of an older version.
        is_dry_run: whether the pool is only looked at.
    """

    max_replicas: int
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    drain_seconds: float = 120.0
    has_versions: bool = True
    is_dry_run: bool = False

    def room(self, replicas: Sequence[ReplicaSample]) -> int:
        """Return how many replicas may be started beside these; those that drain count."""
        return int(min(max(0, self.max_replicas - len(replicas)), num_affordable_more(replicas, self.budget)))
