"""ReplicaActor: runs one replica on the node of its actor, and says how it is. It runs in a worker process of Ray.

Its methods return at once and exchange plain values, as the controller may be of another version than the node.
"""

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.cluster.ray.exit_with_parent import PARENT

NUM_LINES = 30
"""Lines of the replica's log that are kept for the reason of a failure. Ray's log files have all of them."""

_LISTENING = "listening on "


class ReplicaActor:
    """A replica as a child process that ends with this one."""

    def __init__(
        self, *, command: Sequence[str], model: str, arguments: Sequence[str], environ: Mapping[str, str], host: str
    ) -> None:
        """Start the replica on a free port. Ray calls this in the main thread, which lives as long as the process."""
        program = list(command) or [sys.executable, "-m", "chairlift"]
        options = ["serve", *([model] if model else []), *arguments, "--host", host or _node_address(), "--port", "0"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chairlift.cluster.ray.exit_with_parent", *program, *options],
            env={**os.environ, **environ, PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        self._url = ""
        self._lines: deque[str] = deque(maxlen=NUM_LINES)
        self._stop_at: float | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def status(self) -> dict[str, Any]:
        """Return the fields of an ActorReport."""
        exit_code = self._process.poll()
        if exit_code is not None:
            self._reader.join(0.5)  # the last lines say why
        state = "stopping" if self._stop_at is not None else "running" if exit_code is None else "ended"
        return {
            "state": state,
            "url": self._url,
            "exit_code": exit_code,
            "last_lines": list(self._lines),
            "stopping_seconds": 0.0 if self._stop_at is None else time.monotonic() - self._stop_at,
        }

    def stop(self, timeout_seconds: float) -> None:
        """Let the replica drain, kill it after the timeout, and give the placement group back; returns at once."""
        if self._stop_at is None:
            self._stop_at = time.monotonic()
            threading.Thread(target=self._stop, args=(timeout_seconds,), daemon=True).start()

    def _stop(self, timeout_seconds: float) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _remove_own_placement_group()  # which ends this process

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            sys.stderr.write(line)  # Ray writes it to the log files of the actor
            sys.stderr.flush()
            self._lines.append(line.rstrip("\n"))
            if not self._url and line.startswith(_LISTENING):
                self._url = line.split()[-1]


def _node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def _remove_own_placement_group() -> None:
    import ray

    group = ray.util.get_current_placement_group()
    if group is not None:
        ray.util.remove_placement_group(group)
