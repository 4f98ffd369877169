"""StepHistory: one sample a second of what the steps came to."""

from dataclasses import replace
from itertools import count

from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.engine.step_stats import StepStats
from chairlift.server.live.step_history import FIELDS, NUM_SECONDS, StepHistory
from support_step_stats import make_stats


def step(started: float, ended: float, prefill: int, decode: int, budget: int = 64) -> StepStats:
    return make_stats(
        started_ms=started, collect_started_ms=started, collect_ms=ended - started, commit_ms=0.0,
        num_tokens=prefill + decode, num_prefill_tokens=prefill, max_batch_tokens=budget,
    )  # fmt: skip


LOAD = LoadReport(
    state=ReplicaState.READY, waiting_requests=2, running_requests=3, total_blocks=10, free_blocks=6
)  # fmt: skip


def history_at() -> StepHistory:
    seconds = count(1000)
    return StepHistory(lambda: float(next(seconds)))


def test_a_sample_has_the_steps_since_the_last_one() -> None:
    history = history_at()
    history.record(step(0, 10, 30, 2))
    history.record(step(5, 18, 0, 4))  # overlaps the first
    history.sample(LOAD)
    history.sample(replace(LOAD, running_requests=0))
    history.record(step(50, 51, 0, 1))
    history.sample(LOAD)
    first, second, third = (dict(zip(FIELDS, each, strict=True)) for each in history.log.since(0))  # type: ignore[call-overload]
    assert first == {
        "at_seconds": 1000.0, "num_steps": 2, "busy_ms": 18.0, "prefill_tokens": 30, "decode_tokens": 6,
        "max_batch_tokens": 64, "num_running": 3, "num_waiting": 2, "held_blocks": 4,
    }  # fmt: skip
    assert (second["num_steps"], second["busy_ms"], second["num_running"]) == (0, 0.0, 0)
    assert (third["num_steps"], third["busy_ms"], third["at_seconds"]) == (1, 1.0, 1002.0)


def test_an_engine_that_restarts_counts_from_zero() -> None:
    history = history_at()
    history.record(step(100_000, 100_010, 0, 1))
    history.record(step(3, 5, 0, 1))
    history.sample(LOAD)
    (sample,) = history.log.since(0)
    assert sample[1:3] == [2, 12.0]  # type: ignore[index]


def test_the_last_minutes_are_kept() -> None:
    history = history_at()
    for _ in range(NUM_SECONDS + 5):
        history.sample(LOAD)
    assert len(history.log.since(0)) == NUM_SECONDS
