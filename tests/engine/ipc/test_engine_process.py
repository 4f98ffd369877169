"""A spawned engine has a private folder and leaves nothing behind, whichever way it ends."""

import io
import logging
import os
import re
import signal
import tempfile
from pathlib import Path

import pytest

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.engine_process import (
    MAX_SOCKET_PATH_BYTES,
    EngineProcess,
    PrespawnedProcess,
    _private_folder,
    _stream_log_level,
    spawn,
)
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.observability.logging import LogConfig, configure
from support_os_fork import run_in_fork
from support_process import FAST_LIVENESS, child_environment, endless_start, fake_spec, has_ended, spec_of, wait_until


def folder_of(process: EngineProcess) -> Path:
    return Path(process.address.removeprefix("ipc://")).parent


def start(watch: LivenessConfig = FAST_LIVENESS) -> EngineProcess:
    process = spawn(fake_spec(), SchedulerConfig(), watch=watch)
    wait_until((folder_of(process) / "engine").exists)
    return process


def test_stop_is_clean_and_may_be_repeated() -> None:
    process = start()
    assert process.exit_code is None and folder_of(process).stat().st_mode & 0o777 == 0o700
    process.stop()
    process.stop()
    process.kill()
    assert process.exit_code == 0 and has_ended(process.pid) and not folder_of(process).exists()


def test_ctrl_c_does_not_reach_a_child_that_still_imports_its_modules() -> None:
    process = PrespawnedProcess().take()
    assert process is not None
    blocked = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    process.kill()
    process.wait()
    assert blocked is not None and int(blocked[1], 16) & 1 << (signal.SIGINT - 1)


def test_a_fork_of_the_spawner_does_not_keep_its_engine_running() -> None:
    """The end of the pipe ends the engine, also where the spawner was killed and a fork of it lives on."""
    process = start()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        os.read(read_end, 1)  # until the test ends
        os._exit(0)
    try:
        assert process._process.stdin is not None
        os.close(process._process.stdin.fileno())  # as the system does for a process that is killed
        wait_until(lambda: has_ended(process.pid))
    finally:
        os.close(write_end)
        os.close(read_end)
        os.waitpid(pid, 0)
        process.kill()


def test_a_fork_does_not_kill_a_process_that_waits_for_its_spawner() -> None:
    launched = PrespawnedProcess()

    def collect() -> bool:
        launched.__del__()
        return launched.take() is None

    run_in_fork(collect)
    process = launched.take()
    assert process is not None and process.stdin is not None
    process.stdin.close()
    process.kill()
    process.wait()


@pytest.mark.full
@pytest.mark.skipif(len(usable_cpus()) < 2, reason="there is one processor")
def test_it_runs_on_the_processors_that_are_named(tmp_path: Path) -> None:
    one = min(usable_cpus())
    process = spawn(fake_spec(), SchedulerConfig(), watch=FAST_LIVENESS, cpus=[one])
    try:
        wait_until((folder_of(process) / "engine").exists)
        assert os.sched_getaffinity(process.pid) == {one}
    finally:
        process.kill()


@pytest.mark.full
def test_a_process_that_was_launched_before_becomes_the_engines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "loaded_module.py").write_text(f"open({str(seen)!r}, 'w').close()\n", encoding="utf-8")
    (tmp_path / "broken_module.py").write_text("raise RuntimeError\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), child_environment()["PYTHONPATH"]]))
    launched = PrespawnedProcess(["loaded_module", "broken_module", "missing_module"])
    assert launched._process is not None
    pid = launched._process.pid
    wait_until(seen.exists)
    process = spawn(fake_spec(), SchedulerConfig(), watch=FAST_LIVENESS, launched=launched)
    other = spawn(fake_spec(), SchedulerConfig(), watch=FAST_LIVENESS, launched=launched)
    try:
        assert process.pid == pid != other.pid, "it can be taken once"
        for each in (process, other):
            wait_until((folder_of(each) / "engine").exists)
        launched.close()
        assert process.exit_code is None
    finally:
        process.stop()
        other.stop()
    assert process.exit_code == 0 and has_ended(process.pid)


def test_a_launched_process_that_died_is_replaced_and_one_that_is_not_wanted_leaves() -> None:
    dead, unwanted, forgotten = PrespawnedProcess(), PrespawnedProcess(), PrespawnedProcess()
    pids = [each._process.pid for each in (dead, unwanted, forgotten) if each._process is not None]
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: dead._process is not None and dead._process.poll() is not None)
    process = spawn(fake_spec(), SchedulerConfig(), watch=FAST_LIVENESS, launched=dead)
    assert process.pid not in pids
    process.kill()
    unwanted.close()
    unwanted.close()
    assert has_ended(pids[1])
    del forgotten
    assert has_ended(pids[2])


@pytest.mark.full
def test_kill_leaves_nothing_either() -> None:
    process = start()
    process.kill()
    process.stop()
    assert process.exit_code == -signal.SIGKILL and not folder_of(process).exists()


@pytest.mark.full
def test_an_engine_that_still_starts_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
    process = spawn(spec_of(endless_start), SchedulerConfig(), watch=FAST_LIVENESS)
    wait_until((folder_of(process) / "engine").exists)
    process.stop()
    assert process.exit_code == 0


@pytest.mark.full
def test_an_engine_that_is_stopped_by_a_signal_can_be_stopped() -> None:
    process = start(LivenessConfig(stop_timeout=0.3))
    os.kill(process.pid, signal.SIGSTOP)
    process.stop()
    assert process.exit_code == -signal.SIGKILL and not folder_of(process).exists()


def test_what_cannot_be_started_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        spawn(fake_spec(), SchedulerConfig())
    assert list(tmp_path.iterdir()) == []


def test_a_long_folder_for_temporary_files_is_left_for_a_short_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    process = start()
    try:
        assert len(process.address.removeprefix("ipc://")) <= MAX_SOCKET_PATH_BYTES
        assert list(long.iterdir()) == []
    finally:
        process.stop()


def test_the_length_of_the_folder_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        wide = Path(short) / ("中" * 30)
        wide.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(wide))
        folder = _private_folder()
        folder.rmdir()
        assert folder.parent == Path("/tmp")


def test_nothing_of_the_request_is_on_the_command_line() -> None:
    process = start()
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert words[1:] == [b"-P", b"-m", b"chairlift.engine.ipc.engine_main", b""]
    finally:
        process.stop()


def test_a_child_logs_at_the_level_of_the_stream_and_not_of_the_file(tmp_path: Path) -> None:
    assert _stream_log_level() == logging.getLogger().getEffectiveLevel()
    configure(LogConfig(level=logging.DEBUG, stream_level=logging.ERROR, file=str(tmp_path / "log")), io.StringIO())
    assert logging.getLogger("chairlift").getEffectiveLevel() == logging.DEBUG
    assert _stream_log_level() == logging.ERROR
    configure(LogConfig(level=logging.DEBUG, stream_level=logging.DEBUG), io.StringIO())
    assert _stream_log_level() == logging.DEBUG
