"""exit_with_parent: the program replaces it, ends with its parent, and hears Ctrl-C though the parent ignores it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chairlift.cluster.ray.exit_with_parent import PARENT
from support_process import child_environment, has_ended, wait_until

COMMAND = [sys.executable, "-m", "chairlift.cluster.ray.exit_with_parent"]

PARENT_CODE = """
import os, signal, subprocess, sys, time
from chairlift.cluster.ray.exit_with_parent import PARENT
signal.signal(signal.SIGINT, signal.SIG_IGN)
module = "chairlift.cluster.ray.exit_with_parent"
subprocess.Popen([sys.executable, "-m", module, sys.executable, "-c", sys.argv[1]],
                 env={**os.environ, PARENT: str(os.getpid())})
time.sleep(60)
"""
CHILD_CODE = """
import os, signal, sys, time
free = signal.getsignal(signal.SIGINT) == signal.default_int_handler and "%s" not in os.environ
open(os.environ["PID_FILE"], "w").write(f"{os.getpid()} {free}\\n")
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sends a signal at the death of a parent")
def test_the_program_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    environ = {**child_environment(), "PID_FILE": str(file)}
    with subprocess.Popen([sys.executable, "-c", PARENT_CODE, CHILD_CODE % PARENT], env=environ) as parent:
        try:
            wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
            pid, is_free = file.read_text().split()
            assert is_free == "True"  # Ctrl-C raises KeyboardInterrupt, and the variable is gone
            assert not has_ended(int(pid))
        finally:
            parent.send_signal(signal.SIGKILL)
    wait_until(lambda: has_ended(int(pid)))


@pytest.mark.parametrize(
    ("parent", "program", "code", "text"),
    [
        (os.getpid(), "/nowhere/program", 127, "cannot start /nowhere/program: No such file"),
        (1, "true", 1, "the parent process has ended"),
        (os.getpid(), "true", 0, ""),
    ],
    ids=["no program", "another parent", "all is well"],  # a process id would differ between the workers
)
def test_a_program_that_cannot_start_says_why(parent: int, program: str, code: int, text: str) -> None:
    environ = {**child_environment(), PARENT: str(parent)}
    done = subprocess.run([*COMMAND, program], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert text in done.stderr
