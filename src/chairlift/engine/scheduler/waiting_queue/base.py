"""WaitingQueue: the protocol of every queue order, and the policy names that users choose."""

from collections.abc import Callable, Iterator
from typing import Protocol

from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.waiting_queue.cache_aware import CacheAwareQueue
from chairlift.engine.scheduler.waiting_queue.fair import FairQueue
from chairlift.engine.scheduler.waiting_queue.fifo import FifoQueue
from chairlift.engine.scheduler.waiting_queue.priority import PriorityQueue
from chairlift.engine.sequence import Sequence


class WaitingQueue(Protocol):
    """Orders waiting sequences for scheduling. A preempted sequence keeps its place.

    Operations of every step are O(1) or O(log n) in the length of the queue, including the iteration from its head.
    """

    def add(self, sequence: Sequence) -> None:
        """Add a sequence, new or preempted."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence; it must be in the queue."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """Walk the queue from its head; the queue must not change meanwhile."""
        ...

    def __len__(self) -> int:
        """Return the number of waiting sequences."""
        ...

    @property
    def tracks_service(self) -> bool:
        """Whether record_service() must be called."""
        ...

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Charge a tenant for prompt tokens that started or output tokens that were delivered."""
        ...

    @property
    def can_preempt(self) -> bool:
        """Whether a waiting sequence can outrank a running one."""
        ...

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Return whether `running` may be preempted so that `waiting` can start."""
        ...

    def preemption_rank(self, sequence: Sequence) -> int:
        """Return the rank as a victim when blocks run out: the greatest goes first, equals by lost work."""
        ...


POLICIES: dict[str, Callable[[SchedulerConfig, KVCacheManager], WaitingQueue]] = {
    "fifo": lambda config, cache: FifoQueue(),
    "priority": lambda config, cache: PriorityQueue(config.priority_ageing),
    "fair": lambda config, cache: FairQueue(config.tenant_weights),
    "cache_aware": lambda config, cache: CacheAwareQueue(cache),
}


def check_policy(name: str) -> None:
    """Raise ConfigError with the known names when no policy has that name."""
    if name not in POLICIES:
        raise ConfigError(
            f"unknown scheduling_policy {name!r}; available are {', '.join(sorted(POLICIES))}",
            option="scheduling_policy",
        )


def make_waiting_queue(config: SchedulerConfig, cache: KVCacheManager) -> WaitingQueue:
    """Make the waiting queue of config.scheduling_policy. Raises ConfigError for an unknown name."""
    check_policy(config.scheduling_policy)
    return POLICIES[config.scheduling_policy](config, cache)
