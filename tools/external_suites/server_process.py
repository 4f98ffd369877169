"""run_server(): a `chairlift serve` process with the demo model on a free port of the loopback interface."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_SECONDS = 120.0
"""Seconds that the server may take to start, and again to stop."""


@contextmanager
def run_server(model_names: Sequence[str], log: Path) -> Iterator[str]:
    """Run a server that serves the demo model under several names, and yield its URL.

    The server's log is written to a file. Raises RuntimeError if the server does not become ready.
    """
    options = [word for name in model_names for word in ("--served-model-name", name)]
    command = [sys.executable, "-m", "chairlift", "serve", "--port", "0", "--dtype", "float32", *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out)
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
