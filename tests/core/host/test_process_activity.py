"""ActivityWatch, RunQueueDelay: what the kernel counts for a process, in files of the test and for real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chairlift.core.host.process_activity import ActivityWatch, RunQueueDelay


def write_stat(proc: Path, *, faults: int = 0, user_ticks: int = 0, other: int = 0) -> None:
    fields = ["0"] * 50
    fields[7], fields[11], fields[18] = str(faults), str(user_ticks), str(other)
    (proc / "5" / "stat").write_text(f"5 (a) ) name) {' '.join(fields)}\n")


def write_delays(proc: Path, **seconds: float) -> None:
    for name, delay in seconds.items():
        (folder := proc / "5" / "task" / name).mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"1 {round(delay * 1e9)} 3\n")


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
    write_delays(tmp_path, a=100.0, b=50.0)
    assert delay.seconds() == 0.0, "what was before the first call does not count"
    write_delays(tmp_path, a=101.0, b=53.0)
    assert delay.seconds() == pytest.approx(3.0)
    write_delays(tmp_path, a=103.0, b=53.0, c=0.5)
    assert delay.seconds() == pytest.approx(5.0)


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
