"""FIFOScheduler and PrefillFirstScheduler: transformers' calls on the engine's own scheduler."""

import inspect
from typing import Any

import pytest

import chairlift
from chairlift import FIFOScheduler, PagedAttentionCache, PrefillFirstScheduler, RequestState, RequestStatus
from chairlift.core.errors import ConfigError, ContextLengthExceeded, DuplicateRequestId
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.scheduler import Scheduler
from support_engine import make_request, run_step


def cache(num_blocks: int = 10) -> PagedAttentionCache:
    return PagedAttentionCache(CacheConfig(num_blocks=num_blocks, block_size=4))


def generate(scheduler: Any, token_budget: int = 64) -> dict[str, list[int]]:
    """Drive a scheduler as guides do: each new token is the number of tokens before it."""
    done: dict[str, list[int]] = {}
    while scheduler.has_pending_requests():
        batch = scheduler.schedule_batch(token_budget)
        assert batch, "no request can run"
        for state in batch:
            seen = state.position_offset + len(state.tokens_to_process)
            if state.status is RequestStatus.DECODING and state.update_and_check_completion(seen):
                scheduler.finish_request(state.request_id)
                done[state.request_id] = state.generated_tokens
    return done


@pytest.mark.parametrize("kind", [FIFOScheduler, PrefillFirstScheduler])
@pytest.mark.parametrize("token_budget", [3, 64])
def test_requests_run_to_their_end_and_free_their_blocks(kind: Any, token_budget: int) -> None:
    paged = cache()
    scheduler = kind(paged, None, 4)
    for name, length in (("a", 5), ("b", 2), ("c", 9)):
        scheduler.add_waiting_request(RequestState(name, list(range(length)), max_new_tokens=3))
    assert list(scheduler.waiting_requests_order) == list(scheduler.waiting_requests) == ["a", "b", "c"]
    done = generate(scheduler, token_budget)
    assert done == {"a": [5, 6, 7], "b": [2, 3, 4], "c": [9, 10, 11]}
    assert scheduler.is_idle or not scheduler.sequence_groups
    assert paged.get_num_free_blocks() == 10 and scheduler.check_integrity() == []


def test_a_batch_in_the_form_of_newer_versions() -> None:
    scheduler = FIFOScheduler(cache(), 0.0, 8)
    scheduler.add_waiting_request(RequestState("a", [1, 2, 3, 4, 5], max_new_tokens=4))
    parts, is_decode, num_tokens, num_read = scheduler.schedule_batch(64, 1000)
    assert (parts[0].query_length, parts[0].has_new_token, is_decode, num_tokens, num_read) == (5, True, False, 5, 0)
    assert parts[0].complete_blocks == {"0": 1}
    parts[0].state.update_and_check_completion(7)
    parts, is_decode, num_tokens, num_read = scheduler.schedule_batch(64, 1000)
    assert (parts[0].query_length, is_decode, num_tokens, num_read) == (1, True, 1, 5)
    assert parts[0].state.tokens_to_process == [7] and parts[0].state.allocated_blocks == 2


def test_none_says_that_no_open_request_has_room() -> None:
    paged = cache(2)
    scheduler = FIFOScheduler(paged, 0.0)
    assert scheduler.schedule_batch(64, 64) == ([], False, 0, 0)
    paged.allocate_blocks(2, "held")
    scheduler.add_waiting_request(RequestState("a", [1, 2], max_new_tokens=2))
    assert scheduler.schedule_batch(64, 64) == (None, False, 0, 0) and scheduler.schedule_batch(64) == []
    paged.free_blocks("held")
    assert generate(scheduler) == {"a": [2, 3]}


def test_a_request_without_its_token_runs_again() -> None:
    scheduler = FIFOScheduler(cache(), 0.0)
    for name in ("a", "b"):
        scheduler.add_waiting_request(RequestState(name, [1, 2, 3], max_new_tokens=2))
    first = scheduler.schedule_batch(64)
    again = scheduler.schedule_batch(64)
    assert [state.request_id for state in first] == [state.request_id for state in again] == ["a", "b"]
    assert [state.position_offset for state in again] == [0, 0]
    again[0].update_and_check_completion(9)
    third = {state.request_id: state.position_offset for state in scheduler.schedule_batch(64)}
    assert third == {"a": 3, "b": 0}
    assert scheduler.check_integrity() == []


def test_a_request_that_the_caller_does_not_finish_ends_with_its_last_token() -> None:
    scheduler = FIFOScheduler(cache(), 0.0)
    state = RequestState("a", [1, 2, 3], max_new_tokens=9, eos_token_id=5)
    scheduler.add_waiting_request(state)
    for token in (4, 5):
        assert scheduler.schedule_batch(64) == [state]
        state.update_and_check_completion(token)
    assert scheduler.schedule_batch(64) == [] and not scheduler.has_pending_requests()
    assert (state.status, state.finish_reason) == (RequestStatus.FINISHED, "stop")
    assert scheduler.counters.finished_by_reason["stop"] == 1 and scheduler.counters.output_tokens == 2


def test_cancelled_requests_are_returned_once_and_free_their_blocks() -> None:
    paged = cache()
    scheduler = FIFOScheduler(paged, 0.0, 1)
    for name in ("a", "b", "c"):
        scheduler.add_waiting_request(RequestState(name, [1, 2, 3]))
    scheduler.schedule_batch(64)
    assert set(scheduler.active_requests) == {"a"} and set(scheduler.waiting_requests) == {"b", "c"}
    for name in ("a", "b", "unknown"):
        scheduler.set_request_cancellation(name)
    assert scheduler.request_is_cancelled("a") and not scheduler.request_is_cancelled("c")
    removed = scheduler.clear_cancelled_requests()
    assert [(state.request_id, state.status) for state in removed] == [
        ("a", RequestStatus.CANCELLED), ("b", RequestStatus.CANCELLED)
    ]  # fmt: skip
    assert scheduler.clear_cancelled_requests() == [] and scheduler.request_is_cancelled("a")
    assert paged.get_num_free_blocks() == 10 and set(scheduler.states) == {"c"} and scheduler.check_integrity() == []


def test_a_finished_request_frees_also_the_blocks_that_the_caller_allocated() -> None:
    paged = cache()
    scheduler = FIFOScheduler(paged, 0.0)
    state = RequestState("a", [1, 2, 3])
    paged.allocate_blocks(2, state)
    scheduler.add_waiting_request(state)
    scheduler.schedule_batch(64)
    state.update_and_check_completion(4)
    assert scheduler.get_active_request_static_outputs("a") == [4]
    scheduler.finish_request("a")
    scheduler.finish_request("a")
    assert paged.get_num_free_blocks() == 10 and scheduler.get_active_request_static_outputs("a") == []
    assert scheduler.counters.finished_by_reason["abort"] == 1


def test_children_run_as_requests_and_share_the_prompt() -> None:
    scheduler = FIFOScheduler(cache(), 0.0)
    scheduler.add_waiting_request(RequestState("a", list(range(9)), max_new_tokens=2, num_children=2))
    done = generate(scheduler)
    assert done == {name: [9, 10] for name in ("a", "a__child#0", "a__child#1")}


def test_requests_that_can_never_run_and_duplicates_are_rejected() -> None:
    scheduler = FIFOScheduler(cache())
    with pytest.raises(ContextLengthExceeded, match="the limit of their sum is 40"):
        scheduler.add_waiting_request(RequestState("b", list(range(20)), max_new_tokens=22))
    scheduler.add_waiting_request(RequestState("a", [1]))
    with pytest.raises(DuplicateRequestId):
        scheduler.add_waiting_request(RequestState("a", [2]))
    assert set(scheduler.states) == {"a"}


def test_the_constructors_arguments_of_every_version() -> None:
    from transformers.generation.continuous_batching import FIFOScheduler as Theirs

    assert list(inspect.signature(Theirs).parameters) == ["cache", "safety_margin", "max_requests_per_batch"]
    assert (FIFOScheduler(cache(), 0.3, 5).safety_margin, FIFOScheduler(cache(), 0.3, 5).max_requests_per_batch) == (
        0.3, 5
    )  # fmt: skip
    assert FIFOScheduler(cache(), None, 5).safety_margin == 0.2 == FIFOScheduler(cache()).safety_margin
    older = FIFOScheduler(cache(), False, 0.25)
    assert (older.safety_margin, older.max_requests_per_batch) == (0.25, SchedulerConfig().max_running_requests)
    newest = FIFOScheduler(cache=cache(), safety_margin=0.1, max_requests_per_batch=7)
    assert (newest.safety_margin, newest.max_requests_per_batch) == (0.1, 7)
    first = PrefillFirstScheduler(cache(), 0.3, 5)
    assert (first.safety_margin, first.max_requests_per_batch) == (0.0, 5)


def test_a_scheduler_is_made_of_a_cache_and_a_config_of_the_engine() -> None:
    manager = KVCacheManager(CacheConfig(num_blocks=10, block_size=4))
    scheduler = FIFOScheduler(manager, SchedulerConfig(max_running_requests=3), safety_margin=0.5)
    assert isinstance(scheduler, Scheduler) and scheduler.config.batching_policy == "fifo"
    assert (scheduler.config.safety_margin, scheduler.config.max_running_requests) == (0.5, 3)
    scheduler.add_request(make_request("a", 3, 2), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    assert scheduler.is_idle and scheduler.check_integrity() == []
    with pytest.raises(ConfigError, match="less than 1, got 2"):
        FIFOScheduler(cache(), safety_margin=2)


def test_prefill_first_puts_prompts_first() -> None:
    scheduler = PrefillFirstScheduler(cache(), SchedulerConfig(max_batch_tokens=4, max_running_requests=2))
    scheduler.add_waiting_request(RequestState("a", [1, 2, 3, 4], max_new_tokens=4))
    for state in scheduler.schedule_batch(4):
        state.update_and_check_completion(7)
    scheduler.add_waiting_request(RequestState("b", [7] * 4, max_new_tokens=4))
    assert [state.request_id for state in scheduler.schedule_batch(4)] == ["b"]


def test_every_state_they_have_is_here() -> None:
    from transformers.generation.continuous_batching import RequestStatus as Theirs

    assert {state.name: int(state) for state in Theirs}.items() <= {s.name: int(s) for s in RequestStatus}.items()


def test_all_names_of_the_package_are_there() -> None:
    for name in chairlift.__all__:
        assert getattr(chairlift, name) is not None
