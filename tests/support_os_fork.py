"""run_in_fork: what a function returns or raises in a fork, which has the objects of this process but no threads."""

import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

LIMIT_SECONDS = 60.0
"""Seconds after which a fork counts as waiting for ever, and is killed."""


def run_in_fork(function: Callable[[], Any], limit_seconds: float = LIMIT_SECONDS) -> Any:
    """Return what the function returns in a fork, through JSON, or "Class: message" of what it raises there."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks of processes with threads
        pid = os.fork()
    if pid == 0:
        try:
            result = function()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(write_end, json.dumps(result).encode())
        os._exit(0)
    os.close(write_end)
    content, until = b"", time.monotonic() + limit_seconds
    try:
        while select.select([read_end], [], [], max(0.0, until - time.monotonic()))[0]:
            if not (received := os.read(read_end, 65536)):
                break
            content += received
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)
    assert content, "the fork waits for ever, or has died"
    return json.loads(content)
