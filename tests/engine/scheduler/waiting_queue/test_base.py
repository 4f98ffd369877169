"""make_waiting_queue: chooses the waiting queue by the name of its policy."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.waiting_queue.base import POLICIES, check_policy, make_waiting_queue
from chairlift.engine.scheduler.waiting_queue.cache_aware import CacheAwareQueue
from chairlift.engine.scheduler.waiting_queue.fair import FairQueue
from chairlift.engine.scheduler.waiting_queue.fifo import FifoQueue
from chairlift.engine.scheduler.waiting_queue.priority import PriorityQueue

KINDS = {"fifo": FifoQueue, "priority": PriorityQueue, "fair": FairQueue, "cache_aware": CacheAwareQueue}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_queue_is_chosen_by_name(name: str) -> None:
    queue = make_waiting_queue(SchedulerConfig(scheduling_policy=name), KVCacheManager(CacheConfig(num_blocks=4)))
    assert type(queue) is KINDS[name] and len(queue) == 0 and list(queue) == []


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        ConfigError, match="unknown scheduling_policy 'lifo'; available are cache_aware, fair, fifo, priority"
    ):
        check_policy("lifo")
    with pytest.raises(ConfigError, match="unknown scheduling_policy 'lifo'"):
        make_waiting_queue(SchedulerConfig(scheduling_policy="lifo"), KVCacheManager(CacheConfig(num_blocks=4)))
