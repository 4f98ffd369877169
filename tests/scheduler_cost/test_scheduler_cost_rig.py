"""SchedulerRig: keeps its engine full, counts correctly, and can be controlled from another process."""

import io
import json
import sys

import pytest

from chairlift.engine.scheduler.waiting_queue.base import POLICIES
from scheduler_cost.scheduler_cost_rig import CostCase, SchedulerRig, serve

SMALL = CostCase(running=32, waiting=40)


@pytest.mark.full
@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_slot_stays_used_the_waiting_queue_keeps_its_length_and_one_in_twenty_finishes(policy: str) -> None:
    rig = SchedulerRig(CostCase(scheduling_policy=policy, running=32, waiting=40), seed=0)
    totals = rig.run_steps(200)
    assert totals.rows / 200 == pytest.approx(32, abs=0.5)
    assert totals.finished / totals.rows == pytest.approx(0.05, rel=0.15)
    assert totals.prefill_tokens / totals.finished == pytest.approx(40, rel=0.3), (
        "prompts are prefilled, and some are cached"
    )
    assert len(rig._scheduler.waiting) + len(rig._scheduler.running) == 32 + 40
    assert rig._scheduler.check_integrity() == []
    assert rig._scheduler.counters.cached_tokens > 0


def test_each_step_is_counted_once_and_the_fake_is_left_out() -> None:
    totals = SchedulerRig(SMALL, seed=0).run_steps(50)
    assert len(totals.milliseconds) == 50
    assert sum(totals.milliseconds) == pytest.approx(totals.schedule_ms + totals.commit_ms)
    assert min(totals.schedule_ms, totals.commit_ms, totals.intake_ms, totals.cpu_ms) > 0


def test_the_seed_decides_what_is_asked() -> None:
    first, again, other = (SchedulerRig(SMALL, seed).run_steps(30) for seed in (1, 1, 2))
    assert (first.rows, first.finished, first.prefill_tokens) == (again.rows, again.finished, again.prefill_tokens)
    assert (first.finished, first.prefill_tokens) != (other.finished, other.prefill_tokens)


def test_it_replies_to_each_number_of_steps_with_its_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin, stdout = io.BytesIO(b'[{"scheduling_policy": "fair", "running": 8, "waiting": 4}, 3]\n5\n7\n'), io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stdout, write_through=True))
    serve()
    lines = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert lines[0] == {} and [len(line["milliseconds"]) for line in lines[1:]] == [5, 7]
