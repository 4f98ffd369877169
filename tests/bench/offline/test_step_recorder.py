"""StepRecorder: means weighted by duration, waste of held blocks, and a timeline of limited size."""

import pytest

from chairlift.bench.offline.step_recorder import MAX_POINTS, StepRecorder, duration_ms
from support_step_stats import make_stats


def recorder(total: int = 100, *steps: dict[str, float]) -> StepRecorder:
    clock = iter(range(1000, 100_000))
    made = StepRecorder(total, clock=lambda: float(next(clock)))
    for number, values in enumerate(steps):
        made(make_stats(number, **values))
    return made


def test_the_duration_of_a_step_is_all_its_phases() -> None:
    assert duration_ms(make_stats(schedule_ms=1.0, launch_ms=2.0, collect_ms=4.0, commit_ms=8.0)) == 15.0


def test_usage_and_waste_are_weighted_by_duration_and_also_averaged_by_step() -> None:
    report = recorder(
        100,
        {"allocated_kv_tokens": 40, "unused_kv_tokens": 10, "launch_ms": 30.0},
        {"allocated_kv_tokens": 80, "unused_kv_tokens": 0, "launch_ms": 10.0},
    ).summarize(1000.0)
    assert report["kv_cache_usage"] == {"mean": pytest.approx(0.5), "mean_by_step": pytest.approx(0.6), "peak": 0.8,
                              "total_kv_tokens": 100}  # fmt: skip
    assert report["kv_cache_waste"] == {
        "mean": pytest.approx(0.1875),
        "mean_by_step": pytest.approx(0.125),
        "peak": 0.25,
    }
    assert (report["steps"], report["step_seconds"]) == (2, pytest.approx(0.04))


def test_a_step_after_which_no_block_is_held_has_no_waste() -> None:
    report = recorder(
        100, {"allocated_kv_tokens": 50, "unused_kv_tokens": 5, "launch_ms": 1.0}, {"launch_ms": 99.0}
    ).summarize(0.0)
    assert report["kv_cache_waste"]["mean"] == pytest.approx(0.1)
    assert report["kv_cache_usage"]["mean"] == pytest.approx(0.005)


def test_peaks_count_sequences_that_finished_with_the_step() -> None:
    report = recorder(
        9, {"num_sequences": 5, "running": 3, "waiting": 7}, {"num_sequences": 2, "running": 4}
    ).summarize(0.0)
    assert (report["peak_running_requests"], report["peak_waiting_requests"]) == (5, 7)
    assert report["mean_batch"] == 3.5


def test_preemptions_are_those_of_this_run() -> None:
    assert recorder(9, {"preemptions": 4}, {"preemptions": 6}).summarize(0.0, preemptions_before=4)["preemptions"] == 2
    assert recorder(9).summarize(0.0, preemptions_before=4)["preemptions"] == 0


def test_without_steps_means_are_none() -> None:
    report = recorder(9).summarize(0.0)
    assert report["steps"] == 0 and report["kv_cache_usage"]["mean"] is None and report["timeline"]["at"] == []


def test_the_timeline_is_columns_in_seconds_after_the_start() -> None:
    line = recorder(9, {"running": 1, "launch_ms": 2.0}, {"running": 2}).summarize(999.5)["timeline"]
    assert line["at"] == [0.5, 1.5] and line["running"] == [1, 2] and line["milliseconds"] == [2.0, 0.0]


def test_a_long_timeline_is_thinned_and_keeps_its_ends() -> None:
    line = recorder(9, *({"running": number} for number in range(3 * MAX_POINTS))).summarize(0.0)["timeline"]
    assert {len(column) for column in line.values()} == {MAX_POINTS}
    assert (line["running"][0], line["running"][-1]) == (0, 3 * MAX_POINTS - 1)
