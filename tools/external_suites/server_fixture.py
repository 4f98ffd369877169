"""Serving: a real `chairlift serve` over the demo model, on a free port of the loopback interface."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 120.0
"""Seconds that a server may take to be ready."""


@contextmanager
def serving(names: Sequence[str], log: Path) -> Iterator[str]:
    """Serve the demo model under some names and give its URL; what the server writes goes into a file.

    Raises RuntimeError where it does not get ready.
    """
    words = [word for name in names for word in ("--served-model-name", name)]
    command = [sys.executable, "-m", "chairlift", "serve", "--port", "0", "--dtype", "float32", *words]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out)
    try:
        yield _ready(process, log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait until the server is ready; its last word of that is the URL."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("ready after "):
                return line.split()[-1]
        time.sleep(0.1)
    raise RuntimeError(f"the server did not get ready:\n{log.read_text(encoding='utf-8', errors='replace')}")
