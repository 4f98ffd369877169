"""Snapshots: waiting requests in order with reasons, and how full the pool is."""

from chairlift.engine.state_snapshot import MAX_SEQUENCES, cache_state, scheduler_state
from support_engine import make_request, make_result, make_scheduler, run_step


def test_the_waiting_queue_in_order_and_why_each_waits() -> None:
    scheduler = make_scheduler(max_batch_tokens=8, max_chunk_tokens=4, max_running_requests=2)
    scheduler.add_request(make_request("a", 16, 9), 0.0)
    scheduler.add_request(make_request("twin", 16, 9), 0.0)
    scheduler.add_request(make_request("b", [9] * 6, 9), 0.0)
    scheduler.add_request(make_request("c", [8], 9), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    state = scheduler_state(scheduler, 2.0)
    assert state["waiting_order"] == ["twin", "c"]
    assert state["wait_reasons"]["twin"] == "prefix" and state["wait_reasons"]["c"] in {"running_limit", "budget"}
    assert (state["waiting_requests"], state["active_requests"], state["in_flight"]) == (2, 2, 1)
    assert state["states"] == {
        "a": "prefilling_split", "twin": "pending", "b": "prefilling_split", "c": "pending",
    }  # fmt: skip
    assert [(each["request_id"], each["prompt_tokens"], each["wait_reason"]) for each in state["sequences"]] == [
        ("a", 16, ""), ("b", 6, ""), ("twin", 16, "prefix"), ("c", 1, state["wait_reasons"]["c"]),
    ]  # fmt: skip
    assert {each["age_seconds"] for each in state["sequences"]} == {2.0}
    scheduler.commit(make_result(plan), 0.0)
    assert scheduler_state(scheduler, 2.0)["steps"] == 1


def test_each_choice_of_a_request_has_its_state() -> None:
    scheduler = make_scheduler(max_batch_tokens=8, max_chunk_tokens=8, max_running_requests=2)
    scheduler.add_request(make_request("three", 4, 9, n=3), 0.0)
    assert [(each["state"], each["wait_reason"]) for each in scheduler_state(scheduler, 0.0)["choices"]["three"]] == [
        ("pending", "budget"), ("pending", "prefix"), ("pending", "prefix")
    ]  # fmt: skip
    for _ in range(3):
        run_step(scheduler)
    state = scheduler_state(scheduler, 0.0)
    assert state["choices"] == {
        "three": [
            {"choice": 0, "state": "decoding", "wait_reason": ""},
            {"choice": 1, "state": "decoding", "wait_reason": ""},
            {"choice": 2, "state": "pending", "wait_reason": "running_limit"},
        ]
    }
    assert state["states"]["three"] == "decoding"


def test_the_state_of_an_idle_scheduler_is_empty() -> None:
    state = scheduler_state(make_scheduler(), 0.0)
    assert state["waiting_order"] == [] and state["wait_reasons"] == {} and state["states"] == {}


def test_a_state_describes_a_bounded_number_of_sequences() -> None:
    scheduler = make_scheduler()
    for number in range(MAX_SEQUENCES + 1):
        scheduler.add_request(make_request(str(number), 3, 1), 0.0)
    state = scheduler_state(scheduler, 0.0)
    assert len(state["waiting_order"]) == MAX_SEQUENCES + 1 and len(state["sequences"]) == MAX_SEQUENCES


def test_a_snapshot_does_not_change_afterwards() -> None:
    scheduler = make_scheduler()
    state = scheduler_state(scheduler, 2.0)
    scheduler.add_request(make_request("a", 3, 1), 0.0)
    run_step(scheduler)
    assert state["finished_by_reason"]["length"] == 0


def test_the_pool_in_numbers() -> None:
    scheduler = make_scheduler(num_blocks=20, block_size=4)
    scheduler.add_request(make_request("a", 8, 1), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("b", [9] * 10, 9), 0.0)
    run_step(scheduler)
    assert cache_state(scheduler.cache) == {
        "total_blocks": 20, "free_blocks": 15, "cached_blocks": 2, "allocated_blocks": 3, "block_size": 4,
        "memory_utilization": 0.15, "window_blocks_freed": 0,
    }  # fmt: skip


def test_the_saved_states_in_numbers() -> None:
    scheduler = make_scheduler(num_blocks=20, block_size=4, num_state_checkpoints=3)
    scheduler.add_request(make_request("a", 9, 1), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("b", 10, 9), 0.0)
    assert scheduler.schedule(0.0) is not None
    assert cache_state(scheduler.cache).get("state_checkpoints") == {
        "total": 3, "free": 2, "cached": 0, "held": 1, "hits": 1, "saves": 1, "skipped_saves": 0, "evictions": 0,
    }  # fmt: skip
