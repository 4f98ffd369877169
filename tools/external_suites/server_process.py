"""run_server(): a server process on a free port of the loopback interface: the demo model, or scripted replies."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
TIMEOUT_SECONDS = 120.0
"""Seconds that the server may take to start, and again to stop."""


def demo_command(model_names: Sequence[str]) -> list[str]:
    """Return the command that serves the demo model under several names."""
    options = [word for name in model_names for word in ("--served-model-name", name)]
    return [sys.executable, "-m", "chairlift", "serve", "--port", "0", "--dtype", "float32", *options]


def scripted_command() -> list[str]:
    """Return the command that serves the scripted replies of tests/support_scripted_model.py."""
    return [sys.executable, str(TESTS / "support_scripted_model.py")]


def router_command(*urls: str) -> list[str]:
    """Return the command that routes to the servers."""
    replicas = [word for url in urls for word in ("--replica", url)]
    return [sys.executable, "-m", "chairlift", "router", "--port", "0", *replicas]


@contextmanager
def run_server(command: Sequence[str], log: Path) -> Iterator[str]:
    """Run a server and yield its URL; its processes import the modules of tests/.

    The server's log is written to a file. Raises RuntimeError if the server does not become ready.
    """
    paths = filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out
        )
    try:
        yield _wait_until_ready(process, log)
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait for the line "ready after ..." in the log, and return the URL at its end."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("ready after "):
                return line.split()[-1]
        time.sleep(0.1)
    raise RuntimeError(f"the server did not become ready:\n{log.read_text(encoding='utf-8', errors='replace')}")
