"""ServerProcess: waits for the line that says ready, shows the log of a server that has none, and ends its process."""

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from server_process.server_process import ENGINE_MODULE, ServerProcess

READY = "import sys, time; print('ready after 0.1 s: http://127.0.0.1:1234', file=sys.stderr, flush=True); "
SLEEP = "time.sleep(600)"


def command(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def test_a_server_is_ready_inside_and_ended_behind(tmp_path: Path) -> None:
    with ServerProcess(command(READY + SLEEP), tmp_path / "log") as server:
        assert (server.url, server.port) == ("http://127.0.0.1:1234", 1234)
        assert server.process.poll() is None and server.engine_pid is None and server.child_pids() == []
    assert server.process.returncode == -signal.SIGTERM
    assert server.log() == (tmp_path / "log").read_text() == "ready after 0.1 s: http://127.0.0.1:1234\n"


def test_a_server_that_ends_shows_its_log(tmp_path: Path) -> None:
    for code in ("print('no memory')", READY + "print('no memory')"):
        server = ServerProcess(command(code), tmp_path / "log")
        server.process.wait()
        with pytest.raises(RuntimeError, match=r"did not become ready:\n(ready .*\n)?no memory\n"):
            server.wait_until_ready()


def test_a_server_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    server = ServerProcess(command("import time; " + SLEEP), tmp_path / "log", start_seconds=0.1)
    with pytest.raises(RuntimeError, match="did not become ready"), server:
        raise AssertionError("it is not ready")
    assert server.process.returncode == -signal.SIGTERM


def test_each_process_has_its_own_part_of_a_log(tmp_path: Path) -> None:
    logs = []
    for word in ("ä", "b"):
        server = ServerProcess(command(f"print({word!r})"), tmp_path / "log", environ={"PYTHONIOENCODING": "utf-8"})
        server.process.wait()
        logs.append(server.log())
    assert logs == ["ä\n", "b\n"] and (tmp_path / "log").read_text(encoding="utf-8") == "ä\nb\n"


def test_environment_and_folder(tmp_path: Path) -> None:
    code = "import os; print(os.environ['NAME'], 'PATH' in os.environ, os.getcwd())"
    server = ServerProcess(command(code), tmp_path / "log", environ={"NAME": "value"}, folder=tmp_path)
    assert server.process.wait() == 0 and server.log() == f"value True {tmp_path}\n"


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + SLEEP
    server = ServerProcess(command(code), tmp_path / "log")
    server.wait_until_ready()
    assert server.stop(timeout_seconds=0.1) == -signal.SIGKILL
    assert server.stop() == -signal.SIGKILL, "a second time does nothing"


def test_in_an_event_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = ServerProcess(command(READY + SLEEP), tmp_path / "log")
        await server.ready()
        assert server.url
        server.send_signal(signal.SIGSTOP)
        await server.kill()
        assert server.process.returncode == -signal.SIGKILL

    asyncio.run(scenario())


def test_the_engine_is_found_by_its_command_line(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()', '{ENGINE_MODULE}'], "
        "stdin=subprocess.PIPE); " + READY + SLEEP
    )
    with ServerProcess(command(code), tmp_path / "log") as server:
        deadline = time.monotonic() + 30
        while server.engine_pid is None and time.monotonic() < deadline:
            time.sleep(0.01)  # between fork and exec the child has its parent's command line
        assert server.child_pids() == [server.engine_pid]
