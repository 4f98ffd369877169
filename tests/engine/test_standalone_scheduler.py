"""StandaloneScheduler: a scheduler of a cache alone validates what it is given."""

import pytest

from chairlift.core.errors import ContextLengthExceeded, TokenOutOfRange
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.standalone_scheduler import StandaloneScheduler, limits_of
from support_engine import make_request, make_scheduler, run_step


def test_the_limits_of_a_cache_are_its_tokens_and_any_vocabulary() -> None:
    cache = KVCacheManager(CacheConfig(num_blocks=10, block_size=4))
    config = SchedulerConfig()
    limits = limits_of(cache, config)
    assert (limits.max_model_len, limits.num_blocks) == (40, 10)
    scheduler = StandaloneScheduler(config, cache, limits)
    scheduler.add_request(make_request("a", [2**31 - 2], 2), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    assert scheduler.is_idle and scheduler.check_integrity() == []


def test_a_request_that_cannot_be_served_is_rejected() -> None:
    scheduler = make_scheduler(max_model_len=40, vocab_size=50)
    with pytest.raises(ContextLengthExceeded, match="the limit of their sum is 40"):
        scheduler.add_request(make_request("a", 20, 22), 0.0)
    with pytest.raises(TokenOutOfRange):
        scheduler.add_request(make_request("b", [50], 2), 0.0)
    assert scheduler.is_idle
