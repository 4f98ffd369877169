"""Preemption trial: blocks that the head shares with a victim would not come free, so the victim goes on."""

from chairlift.engine.scheduler.scheduler import Scheduler
from support_engine import make_request, make_scheduler, run_step


def running(scheduler: Scheduler) -> list[str]:
    return [sequence.request_id for sequence in scheduler.running.values()]


def test_blocks_that_the_head_shares_with_a_victim_do_not_come_free() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", num_blocks=32)
    scheduler.add_request(make_request("peer", [501] * 40, 30, priority=0), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("low", [502] * 32, 20, priority=5), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("urgent", [502] * 32 + [503] * 38, 4, priority=0), 0.1)
    for step in range(10):
        run_step(scheduler, 0.2 + step)
    assert scheduler.counters.preemptions == 0 and running(scheduler) == ["peer", "low"]
