"""CacheAwareQueue: cached prefixes first, within the bound on the extra wait."""

from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.waiting_queue.cache_aware import MAX_DELAY_RATIO, MIN_BYPASSES, WINDOW, CacheAwareQueue
from support_engine import make_request, make_scheduler, run_step

WARM, COLD = [501] * 12, 600


def warm_scheduler(**options: object) -> Scheduler:
    """Make a scheduler whose cache holds WARM."""
    scheduler = make_scheduler(scheduling_policy="cache_aware", max_model_len=64, num_blocks=400, **options)  # type: ignore[arg-type]
    scheduler.add_request(make_request("first", WARM, 1), 0.0)
    run_step(scheduler)
    return scheduler


def names(scheduler: Scheduler) -> list[str]:
    return [sequence.request_id for sequence in scheduler.waiting]


def test_the_longest_cached_prefix_is_first_and_equals_in_order_of_arrival() -> None:
    scheduler = warm_scheduler()
    scheduler.add_request(make_request("cold", [COLD] * 12, 2), 0.0)
    scheduler.add_request(make_request("half", [*WARM[:4], *[7] * 8], 2), 0.0)
    scheduler.add_request(make_request("whole", [*WARM, 9], 2), 0.0)
    scheduler.add_request(make_request("whole too", [*WARM, 8], 2), 0.0)
    assert names(scheduler) == ["whole", "whole too", "half", "cold"]


def test_what_was_evicted_counts_no_more_and_what_was_computed_does() -> None:
    scheduler = warm_scheduler()
    scheduler.add_request(make_request("cold", [COLD] * 12, 2), 0.0)
    scheduler.add_request(make_request("warm", [*WARM, 9], 2), 0.0)
    assert names(scheduler) == ["warm", "cold"]
    scheduler.cache.evict_all()
    assert names(scheduler) == ["cold", "warm"]


def test_only_the_oldest_are_compared() -> None:
    scheduler = warm_scheduler()
    for number in range(WINDOW):
        scheduler.add_request(make_request(f"cold {number}", [COLD + number] * 5, 2), 0.0)
    scheduler.add_request(make_request("warm", [*WARM, 9], 2), 0.0)
    assert names(scheduler)[-1] == "warm"


def test_waiting_time_wins_in_the_end() -> None:
    """Warm requests bypass a cold one as often as the bound allows and not once more."""
    scheduler = warm_scheduler(max_running_requests=1)
    ahead = 40
    for number in range(ahead):
        scheduler.add_request(make_request(f"warm {number}", [*WARM, number], 1), 0.0)
    scheduler.add_request(make_request("cold", [COLD] * 12, 1), 0.0)
    num_started = 0
    while "cold" in scheduler.sequences:
        scheduler.add_request(make_request(f"more {num_started}", [*WARM, num_started], 1), 0.0)
        _, [output] = run_step(scheduler)
        num_started += output.request_id != "cold"
    assert num_started == ahead + max(MIN_BYPASSES, int(MAX_DELAY_RATIO * ahead))


def test_a_victim_is_due_at_once() -> None:
    scheduler = warm_scheduler()
    queue = scheduler.waiting
    assert isinstance(queue, CacheAwareQueue)
    scheduler.add_request(make_request("cold", [COLD] * 12, 9), 0.0)
    run_step(scheduler)
    scheduler.table.preempt(scheduler.sequences["cold"], 0.0)
    scheduler.cache.evict_all()
    scheduler.add_request(make_request("other", [7] * 12, 9), 0.0)
    assert names(scheduler) == ["cold", "other"]


def test_the_quick_look_finds_what_match_finds() -> None:
    for windows in ((None,), (None, 8), (None, None)):
        scheduler = make_scheduler(scheduling_policy="cache_aware", windows=windows, num_blocks=200)
        scheduler.add_request(make_request("first", WARM, 1), 0.0)
        run_step(scheduler)
        scheduler.add_request(make_request("next", [*WARM, 9, 9], 1), 0.0)
        sequence, cache = scheduler.sequences["next"], scheduler.cache
        found = cache.match(sequence.block_hashes, len(sequence.token_ids)).num_tokens // 4
        for last_seen in (0, 1, 3, 9):
            assert cache.prefix_blocks(sequence.block_hashes, len(sequence.token_ids), last_seen) == found > 0
        assert cache.prefix_blocks(sequence.block_hashes, 5, 9) == 1, "at least one token stays to compute"
