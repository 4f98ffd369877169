"""A rig keeps its engine as full as it says, counts what it says, and can be driven from another process."""

import io
import json
import sys

import pytest

from chairlift.bench.micro.scheduler_cost_rig import CostCase, SchedulerRig, serve
from chairlift.engine.scheduler.waiting_queue.base import POLICIES

SMALL = CostCase(running=32, waiting=40)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_seats_stay_taken_the_line_keeps_its_length_and_one_in_twenty_leaves(policy: str) -> None:
    rig = SchedulerRig(CostCase(policy=policy, running=32, waiting=40), seed=0)
    seen = rig.turn(200)
    assert seen.rows / 200 == pytest.approx(32, abs=0.5)
    assert seen.finished / seen.rows == pytest.approx(0.05, rel=0.15)
    assert seen.prefill_tokens / seen.finished == pytest.approx(40, rel=0.3), "prompts ride, and some are cached"
    assert len(rig._scheduler.waiting) + len(rig._scheduler.running) == 32 + 40
    assert rig._scheduler.check_integrity() == []
    assert rig._scheduler.counters.cached_tokens > 0


def test_each_step_is_counted_once_and_the_fake_is_left_out() -> None:
    seen = SchedulerRig(SMALL, seed=0).turn(50)
    assert len(seen.milliseconds) == 50
    assert sum(seen.milliseconds) == pytest.approx(seen.schedule_ms + seen.commit_ms)
    assert min(seen.schedule_ms, seen.commit_ms, seen.intake_ms, seen.cpu_ms) > 0


def test_the_seed_decides_what_is_asked() -> None:
    first, again, other = (SchedulerRig(SMALL, seed).turn(30) for seed in (1, 1, 2))
    assert (first.rows, first.finished, first.prefill_tokens) == (again.rows, again.finished, again.prefill_tokens)
    assert (first.finished, first.prefill_tokens) != (other.finished, other.prefill_tokens)


def test_it_answers_each_number_of_steps_with_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = io.BytesIO(b'[{"policy": "fair", "running": 8, "waiting": 4}, 3]\n5\n7\n'), io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(asked))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(answers, write_through=True))
    serve()
    lines = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert lines[0] == {} and [len(line["milliseconds"]) for line in lines[1:]] == [5, 7]
