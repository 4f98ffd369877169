"""Aliases: transformers' names exist and do the same."""

import pytest

import chairlift
from chairlift import FIFOScheduler, PagedAttentionCache, PrefillFirstScheduler, RequestStatus
from chairlift.core.errors import ConfigError, ContextLengthExceeded
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.scheduler.scheduler import Scheduler
from support_engine import make_request, run_step


def cache() -> PagedAttentionCache:
    return PagedAttentionCache(CacheConfig(num_blocks=10, block_size=4))


def test_a_scheduler_is_made_of_a_cache_alone() -> None:
    scheduler = FIFOScheduler(cache())
    assert isinstance(scheduler, Scheduler) and scheduler.config.batching_policy == "fifo"
    scheduler.add_request(make_request("a", 3, 2), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    assert scheduler.is_idle and scheduler.check_integrity() == []
    with pytest.raises(ContextLengthExceeded, match="the limit of their sum is 40"):
        scheduler.add_request(make_request("b", 20, 22), 0.0)


def test_the_safety_margin_is_the_schedulers_and_the_rest_is_the_configs() -> None:
    scheduler = FIFOScheduler(cache(), SchedulerConfig(max_running_requests=3), safety_margin=0.5)
    assert (scheduler.config.safety_margin, scheduler.config.max_running_requests) == (0.5, 3)
    with pytest.raises(ConfigError, match="less than 1, got 2"):
        FIFOScheduler(cache(), safety_margin=2)


def test_prefill_first_puts_prompts_first() -> None:
    scheduler = PrefillFirstScheduler(cache(), SchedulerConfig(max_batch_tokens=4, max_running_requests=2))
    scheduler.add_request(make_request("a", 4, 4), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("b", [7] * 4, 4), 0.0)
    plan, _ = run_step(scheduler)
    assert [card.token_ids for card in plan.new_sequences] == [(7, 7, 7, 7)] and plan.num_rows == 1


def test_every_state_they_have_is_here() -> None:
    from transformers.generation.continuous_batching import RequestStatus as Theirs

    assert {state.name for state in Theirs} <= {state.name for state in RequestStatus}


def test_all_names_of_the_package_are_there() -> None:
    for name in chairlift.__all__:
        assert getattr(chairlift, name) is not None
