"""SilentEngineCheck: a silent process that runs is alive, until it hangs; one that does not run has stopped."""

from pathlib import Path

import pytest

from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.ipc.silent_engine_check import SilentEngineCheck

LIMITS = LivenessConfig(heartbeat_timeout=30.0, step_timeout=120.0, start_heartbeat_timeout=60.0)
PID = 5


class Process:
    """The kernel's files of a process that runs or waits for a processor, a second for each call of second()."""

    def __init__(self, proc: Path) -> None:
        self._folder = proc / str(PID)
        self._ticks = self._delay = 0
        (self._folder / "task" / "1").mkdir(parents=True)

    def second(self, *, runs: bool, waits: float = 0.0) -> None:
        self._ticks += runs
        self._delay += round(waits * 1e9)
        (self._folder / "stat").write_text(f"{PID} (x) {' '.join(['0'] * 11 + [str(self._ticks)] + ['0'] * 40)}\n")
        (self._folder / "task" / "1" / "schedstat").write_text(f"0 {self._delay} 0\n")


def seconds_until_failure(
    tmp_path: Path, *, runs: bool, waits: float = 0.0, pid: int | None = PID, is_ready: bool = True
) -> tuple[int, str]:
    """Return the seconds of silence until the process counts as failed, at most 700, and why."""
    process, check = Process(tmp_path), SilentEngineCheck(LIMITS, 0.0, pid, proc=tmp_path)
    for now in range(1, 700):
        process.second(runs=runs, waits=waits)
        if reason := check.failure_reason(float(now), is_ready=is_ready):
            return now, reason
    return 700, ""


def test_a_process_that_does_not_run_has_stopped(tmp_path: Path) -> None:
    assert seconds_until_failure(tmp_path, runs=False) == (
        31, "the engine process has been silent and has not run for 31.0 s, the limit is 30 s"
    )  # fmt: skip


def test_a_start_has_a_limit_of_its_own(tmp_path: Path) -> None:
    assert seconds_until_failure(tmp_path, runs=False, is_ready=False)[0] == 61


def test_an_unknown_process_has_only_messages(tmp_path: Path) -> None:
    assert seconds_until_failure(tmp_path, runs=True, pid=None) == (
        31, "the engine process has been silent for 31.0 s, the limit is 30 s"
    )  # fmt: skip


def test_a_process_that_runs_is_alive_for_as_long_as_a_step_may_take(tmp_path: Path) -> None:
    seconds, reason = seconds_until_failure(tmp_path, runs=True)
    assert seconds == 121
    assert reason == "the engine hangs: its process runs, but has been silent for 121.0 s, the limit is 120 s"


def test_a_start_that_runs_is_alive(tmp_path: Path) -> None:
    assert seconds_until_failure(tmp_path, runs=True, is_ready=False) == (700, "")


def test_waiting_for_a_processor_does_not_count(tmp_path: Path) -> None:
    seconds, reason = seconds_until_failure(tmp_path, runs=True, waits=0.75)
    assert seconds == pytest.approx(480, abs=12) and "hangs" in reason


def test_the_message_has_the_limit_that_holds(tmp_path: Path) -> None:
    check = SilentEngineCheck(LivenessConfig(heartbeat_timeout=600.0, step_timeout=10.0), 0.0, None, proc=tmp_path)
    reasons = [check.failure_reason(float(now), is_ready=now > 300) for now in range(1, 602)]
    assert reasons[:-1] == [None] * 600, "a start has at least the limit of a silence"
    assert reasons[-1] is not None and reasons[-1].endswith("the limit is 600 s")


def test_a_message_ends_the_silence(tmp_path: Path) -> None:
    process, check = Process(tmp_path), SilentEngineCheck(LIMITS, 0.0, PID, proc=tmp_path)
    for now in range(1, 200):
        process.second(runs=False)
        if now % 29 == 0:
            check.message_received(float(now))
        assert check.failure_reason(float(now), is_ready=True) is None
