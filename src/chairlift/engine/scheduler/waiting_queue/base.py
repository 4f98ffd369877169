"""Order of the waiting line: what every line can do, and the names users choose them by."""

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
    """Waiting sequences in the order in which they should board. A victim that returns keeps its place.

    What happens in every step is O(1) or O(log n) in the length of the line, the walk from its head included.
    """

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in, new or returning."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take it out; it must be in."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """Walk the line from its head; the line does not change meanwhile."""
        ...

    def __len__(self) -> int:
        """Return how many wait."""
        ...

    @property
    def tracks_service(self) -> bool:
        """Whether served() must be called."""
        ...

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Note that so many tokens of its prompts were let in, or so many output tokens delivered."""
        ...

    @property
    def can_preempt(self) -> bool:
        """Whether somebody on board can be outranked by somebody in line."""
        ...

    def outranks(self, waiting: Sequence, riding: Sequence) -> bool:
        """Say whether `riding` may be sent back to the line so that `waiting` can board."""
        ...

    def preemption_rank(self, sequence: Sequence) -> int:
        """Who leaves first when blocks run out: the greatest; equals by what they lose."""
        ...


POLICIES: dict[str, Callable[[SchedulerConfig, KVCacheManager], WaitingQueue]] = {
    "fifo": lambda config, cache: FifoQueue(),
    "priority": lambda config, cache: PriorityQueue(config.priority_ageing),
    "fair": lambda config, cache: FairQueue(config.tenant_weights),
    "cache_aware": lambda config, cache: CacheAwareQueue(cache),
}


def check_policy(name: str) -> None:
    """Raise ConfigError, naming those that exist, when there is no line of that name."""
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}; there is {', '.join(sorted(POLICIES))}", option="policy")


def make_waiting_queue(config: SchedulerConfig, cache: KVCacheManager) -> WaitingQueue:
    """Make the line that config.policy names. Raises ConfigError when there is none."""
    check_policy(config.policy)
    return POLICIES[config.policy](config, cache)
