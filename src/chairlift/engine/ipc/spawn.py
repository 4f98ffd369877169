"""spawn(): an engine in a process of its own; EngineProcess is who holds it."""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.liveness import LivenessConfig
from chairlift.engine.ipc.messages import StartMessage, encode
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

COMMAND = ("-P", "-m", "chairlift.engine.ipc.engine_main")
"""Never the caller's script: nothing of it is imported again. -P: nor what lies in the current folder."""

LENGTH_BYTES = 4
LONGEST_DEATH_SECONDS = 5.0

STOP = b"stop"
"""What the pipe says to a child that has to leave, where a fork of its spawner keeps the pipe open."""

LONGEST_SOCKET_PATH = 100  # bytes; the system's limit is 107 (Linux) or 103 (macOS)
SOCKET_NAME = "engine"


class EngineProcess:
    """A child process with an engine, its private folder, and the pipe that tells it that we live.

    The child leaves when the pipe closes: on stop(), or when this process ends, however it ends.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, watch: LivenessConfig) -> None:
        self._process = process
        self._folder = folder
        self._watch = watch
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def address(self) -> str:
        """Where clients reach the engine: "ipc://..."; the folder can be entered by this user only."""
        return f"ipc://{self._folder / SOCKET_NAME}"

    @property
    def exit_code(self) -> int | None:
        """None while the child lives; minus the signal's number when one killed it."""
        return self._process.poll()

    def send_start(self, start: bytes) -> None:
        """Write the start message; returns when the child has read it, or is gone."""
        assert self._process.stdin is not None
        left = memoryview(len(start).to_bytes(LENGTH_BYTES, "big") + start)
        with contextlib.suppress(OSError, ValueError):  # a death is noticed where every death is
            while left:
                left = left[os.write(self._process.stdin.fileno(), left) :]

    def stop(self) -> None:
        """Ask the engine to leave, kill it when it does not; returns when it is gone. May be called more than once."""
        self._close_pipe(STOP)
        try:
            self._process.wait(self._watch.stop_timeout)
        except subprocess.TimeoutExpired:
            logging.getLogger(__name__).warning("engine process %d did not leave and is killed", self.pid)
        self.kill()

    def kill(self) -> None:
        """Kill the engine, wait until it is gone, remove its folder. May be called more than once."""
        self._process.kill()
        try:
            self._process.wait(self._watch.stop_timeout)
        except subprocess.TimeoutExpired:  # the kernel holds it; it is dead for us
            logging.getLogger(__name__).error("engine process %d cannot be killed", self.pid)
        self._close_pipe()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_pipe(self, last: bytes = b"") -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with self._lock:
            if last and not pipe.closed:
                os.set_blocking(pipe.fileno(), False)  # a child that has not read its start message is killed later
                with contextlib.suppress(OSError):
                    os.write(pipe.fileno(), last)
            with contextlib.suppress(OSError):
                pipe.close()


class PrespawnedProcess:
    """A process that will be an engine's: it imports what that needs, and waits to hear which one it is.

    It leaves when this is closed, or forgotten.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        """Start it. Raises OSError when there can be no process."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, *COMMAND, *modules], stdin=subprocess.PIPE, bufsize=0
        )

    def take(self) -> "subprocess.Popen[bytes] | None":
        """Return the process to whoever tells it, which is done once; None from then on, and where it has died."""
        with self._lock:
            process, self._process = self._process, None
        return process if process is not None and process.poll() is None else None

    def close(self) -> None:
        """Have it leave, unless it was taken."""
        if (process := self.take()) is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it; it is dead for us
                process.wait(LONGEST_DEATH_SECONDS)

    def __del__(self) -> None:
        if hasattr(self, "_process"):  # else there was none
            self.close()


def spawn(
    spec: RunnerSpec, config: SchedulerConfig, *, enable_prefix_caching: bool = True,
    watch: LivenessConfig | None = None,
    vocabulary: GrammarTokenizer | None = None, cpus: Iterable[int] = (), launched: PrespawnedProcess | None = None,
) -> EngineProcess:  # fmt: skip
    """Start a process with an engine and return at once; whether it starts well is told to its clients.

    The environment passes through; the engine runs on `cpus`, or where its spawner does. A process that was launched
    before, and is there still, is taken. Raises OSError when there can be no process.
    """
    watch = watch or LivenessConfig()
    folder = _private_folder()
    try:
        process = (None if launched is None else launched.take()) or PrespawnedProcess().take()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    assert process is not None, "a process that has just been started was not waited for"
    engine = EngineProcess(process, folder, watch)
    start = encode(StartMessage(
        spec=spec, config=config, enable_prefix_caching=enable_prefix_caching, address=engine.address,
        log_level=_level_of_the_stream(), stop_timeout=watch.stop_timeout / 2, vocabulary=vocabulary,
        cpus=tuple(sorted(cpus)),
    ))  # fmt: skip
    # It may be megabytes, and is read when the child has come so far.
    threading.Thread(target=engine.send_start, args=(start,), name="chairlift-spawn", daemon=True).start()
    return engine


def _level_of_the_stream() -> int:
    """Return the level of what this process logs to a stream: a child's standard error is the same one."""
    root = logging.getLogger("chairlift")
    streams = [each.level for each in root.handlers if type(each) is logging.StreamHandler]
    return max(root.getEffectiveLevel(), min(streams, default=0))


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="chairlift-engine-"))
    if len(os.fsencode(folder / SOCKET_NAME)) > LONGEST_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="chairlift-engine-", dir="/tmp"))
    return folder
