"""Forked processes of tests: one process forks for all workers of a run, survives bad requests and ends with them."""

import json
import os
import socket
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

import support_forks
from support_forks import FOLDERS, REQUEST_SECONDS, SERVER_MODULES, ForkedProcess, run_process
from support_shares import FULL

TESTS = Path(__file__).parent
USER = """
import json, sys
from support_forks import ForkedProcess
command = [sys.executable, "-c", "import os; print(os.getppid())"]
process = ForkedProcess(command, stdout=-1, text=True, modules=("json",))
print(json.dumps([process.communicate()[0], process.wait()]), flush=True)
sys.stdin.read()
"""


def start_user(run: str, **environ: str) -> "subprocess.Popen[str]":
    """Start a process that has another one forked, prints its output and exit code, and waits for its input's end."""
    variables = {**os.environ, "PYTEST_XDIST_TESTRUNUID": run, "PYTHONPATH": str(TESTS), **environ}
    return subprocess.Popen(
        [sys.executable, "-c", USER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, text=True
    )


def line_of(user: "subprocess.Popen[str]") -> Any:
    assert user.stdout is not None
    return json.loads(user.stdout.readline())


@pytest.fixture
def run() -> str:
    return f"test{uuid.uuid4().hex}"


def folders_of(run: str) -> list[Path]:
    return list(Path(FOLDERS).glob(f"forks-{run}-*"))


def test_one_process_forks_for_all_users_until_the_last_one_ends(run: str) -> None:
    with start_user(run) as first, start_user(run) as second:
        (parent, code), (other_parent, other_code) = line_of(first), line_of(second)
        assert parent == other_parent and code == other_code == 0
        first.kill()
        first.wait()
        with start_user(run) as third:
            assert line_of(third) == [parent, 0], "the end of the process that started it is not its end"
            third.kill()
        assert len(folders_of(run)) == 1
        second.communicate()
    while folders_of(run) or Path(f"/proc/{int(parent)}").exists():
        time.sleep(0.01)  # the test's own timeout ends it


def test_a_process_that_was_killed_is_replaced(run: str) -> None:
    with start_user(run) as first:
        parent, _ = line_of(first)
        os.kill(int(parent), 9)
        with start_user(run) as second:
            other_parent, code = line_of(second)
            assert other_parent != parent and code == 0
            second.communicate()
        first.communicate()


def test_a_failed_start_is_said_and_can_be_tried_again(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_forks, "RUN", run)
    monkeypatch.setattr(support_forks, "COMMAND", "import sys; sys.exit(3)")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="exit code 3"):
            support_forks._folder.__wrapped__(("json",))
    for folder in folders_of(run):
        (folder / "users").unlink()
        folder.rmdir()


@pytest.mark.skipif(FULL, reason="no process is forked")
@pytest.mark.parametrize("part", [b"", b"\0\0", struct.pack("!I", 100), struct.pack("!I", 100) + b"{"])
def test_a_request_that_is_cut_anywhere_is_no_end(part: bytes) -> None:
    first = run_process([sys.executable, "-c", "print(1)"], modules=SERVER_MODULES, text=True)
    folder = os.environ.get(support_forks.FOLDER_VARIABLE) or support_forks._folder(SERVER_MODULES)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{folder}/forks")
        if part:
            connection.sendall(part)
    second = run_process([sys.executable, "-c", "print(1)"], modules=SERVER_MODULES, text=True)
    assert first.stdout == second.stdout == "1\n" and first.returncode == second.returncode == 0


@pytest.mark.full
def test_a_request_that_stops_in_the_middle_is_given_up(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_forks, "RUN", run)
    folder = support_forks._folder.__wrapped__(("json",))
    monkeypatch.setattr(support_forks, "_folder", lambda modules: folder)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{folder}/forks")
        connection.sendall(b"\0")
        started_at = time.monotonic()
        assert ForkedProcess([sys.executable, "-c", "pass"], modules=("json",)).wait(60) == 0
        assert time.monotonic() - started_at < 3 * REQUEST_SECONDS
