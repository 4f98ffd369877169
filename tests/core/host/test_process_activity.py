"""What the kernel counts, in files of the test and for real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.host.process_activity import (
    ActivityWatch,
    RunQueueDelay,
    UndelayedTimer,
    cpu_seconds,
    without_delay,
)


def write_stat(proc: Path, *, faults: int = 0, user_ticks: int = 0, other: int = 0) -> None:
    fields = ["0"] * 50
    fields[7], fields[11], fields[18] = str(faults), str(user_ticks), str(other)
    (proc / "5" / "stat").write_text(f"5 (a) ) name) {' '.join(fields)}\n")


def write_times(proc: Path, **seconds: tuple[float, float]) -> None:
    """Write for how long each thread has run, and waited for a processor."""
    for name, (ran, waited) in seconds.items():
        (folder := proc / "5" / "task" / name).mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"{round(ran * 1e9)} {round(waited * 1e9)} 3\n")


def test_a_change_of_a_counter_is_activity(tmp_path: Path) -> None:
    (tmp_path / "5").mkdir()
    watch = ActivityWatch(5, proc=tmp_path)
    assert not watch.was_active(), "there is no file"
    write_stat(tmp_path)
    assert [watch.was_active() for _ in range(2)] == [False, False]
    write_stat(tmp_path, faults=1)
    assert [watch.was_active() for _ in range(2)] == [True, False]
    write_stat(tmp_path, faults=1, user_ticks=1)
    assert [watch.was_active() for _ in range(2)] == [True, False]
    write_stat(tmp_path, faults=1, user_ticks=1, other=1)
    assert not watch.was_active(), "not every field is activity"
    (tmp_path / "5" / "stat").unlink()
    assert not watch.was_active()


def test_the_thread_that_waited_longest_counts_between_two_calls(tmp_path: Path) -> None:
    delay = RunQueueDelay(5, proc=tmp_path)
    assert delay.seconds() == 0.0
    write_times(tmp_path, a=(1, 100), b=(1, 50))
    assert delay.seconds() == 0.0, "what was before the first call does not count"
    write_times(tmp_path, a=(1, 101), b=(1, 53))
    assert delay.seconds() == pytest.approx(3.0), "a stopped process has no busy threads, and all count"
    write_times(tmp_path, a=(2, 103), b=(2, 53), c=(1, 0.5))
    assert delay.seconds() == pytest.approx(5.0)


def test_threads_that_rarely_want_a_processor_do_not_count(tmp_path: Path) -> None:
    delay = RunQueueDelay(5, proc=tmp_path)
    write_times(tmp_path, busy=(10, 1), low=(0, 7))
    assert delay.read() == []
    write_times(tmp_path, busy=(11, 1.5), low=(0.1, 7.1), displaced=(0.2, 0.8))
    assert sorted(round(each.delay_seconds, 3) for each in delay.read()) == [0.5, 0.8]


def test_a_tenth_of_an_operation_counts_however_long_it_was_delayed() -> None:
    assert (without_delay(100.0, 30.0), without_delay(100.0, 99.0)) == (70.0, 10.0)


def test_a_timer_counts_no_delay_of_its_slowest_process_by_other_programs(tmp_path: Path) -> None:
    clock = FakeClock(start=1000.0)
    write_times(tmp_path, a=(1, 100))
    timer, alone = (UndelayedTimer(pids, now=clock.now, proc=tmp_path) for pids in ([4, 5], []))
    clock.advance(10.0)
    assert timer.elapsed() == 10.0
    write_times(tmp_path, a=(2, 107))
    assert timer.elapsed() == pytest.approx(3.0) and alone.elapsed() == 10.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_process_is_not_active() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        try:
            watch, end = ActivityWatch(process.pid), time.monotonic() + 60
            while not watch.was_active():
                assert time.monotonic() < end
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            watch.was_active()
            time.sleep(0.05)
            assert not watch.was_active()
            assert RunQueueDelay(process.pid).seconds() == 0.0
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the clock of another process is one of Linux")
def test_the_processor_time_of_a_process_grows_and_one_that_does_not_exist_has_none() -> None:
    times, before = os.times(), cpu_seconds(os.getpid())
    assert before == pytest.approx(times.user + times.system, abs=0.5)
    sum(range(100_000))
    assert (cpu_seconds(os.getpid()) or 0.0) > (before or 0.0)
    assert cpu_seconds(2**22 + 1) is None
