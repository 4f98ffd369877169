"""spawn: starts an engine in a process of its own; EngineProcess owns that process."""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

from chairlift.core.host.blocked_interrupt import blocked_interrupt
from chairlift.engine.client.creator_process import CreatorProcess
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.ipc.messages import StartMessage, encode
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

COMMAND = ("-P", "-m", "chairlift.engine.ipc.engine_main")
"""Interpreter arguments: the caller's script is not imported again, and with -P nothing in the current folder is."""

LENGTH_BYTES = 4
MAX_EXIT_SECONDS = 5.0

STOP = b"stop"
"""Written to the pipe to stop a child whose pipe a fork of its spawner may keep open."""

MAX_SOCKET_PATH_BYTES = 100  # the system's limit is 107 (Linux) or 103 (macOS)
SOCKET_NAME = "engine"


class EngineProcess:
    """A child process with an engine, its private folder, and a pipe that ends with this process.

    The child exits when the pipe closes: on stop(), or when this process ends in any way.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, watch: LivenessConfig) -> None:
        _engine_processes.add(self)
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
        """The address for clients, "ipc://..."; only this user can enter its folder."""
        return f"ipc://{self._folder / SOCKET_NAME}"

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while the child runs; minus the signal's number when a signal killed it."""
        return self._process.poll()

    def send_start(self, start: bytes) -> None:
        """Write the start message; returns when the child has read it or has ended."""
        assert self._process.stdin is not None
        remaining = memoryview(len(start).to_bytes(LENGTH_BYTES, "big") + start)
        with contextlib.suppress(OSError, ValueError):  # the connection notices a child that has ended
            while remaining:
                remaining = remaining[os.write(self._process.stdin.fileno(), remaining) :]

    def stop(self) -> None:
        """Stop the engine, or kill it after stop_timeout; wait for its end. May be called more than once."""
        self._close_pipe(STOP)
        try:
            self._process.wait(self._watch.stop_timeout)
        except subprocess.TimeoutExpired:
            logging.getLogger(__name__).warning("engine process %d did not stop and is killed", self.pid)
        self.kill()

    def kill(self) -> None:
        """Kill the engine, wait for its end, remove its folder. May be called more than once."""
        self._process.kill()
        try:
            self._process.wait(self._watch.stop_timeout)
        except subprocess.TimeoutExpired:  # the kernel holds it; it counts as ended
            logging.getLogger(__name__).error("engine process %d cannot be killed", self.pid)
        self._close_pipe()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close_inherited_pipe(self) -> None:
        """Close a fork's copy of the pipe, which would keep the engine running after the end of its spawner."""
        if self._process.stdin is not None:
            self._process.stdin.close()

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


_engine_processes: "weakref.WeakSet[EngineProcess]" = weakref.WeakSet()


def _close_inherited_pipes() -> None:
    for process in list(_engine_processes):
        process.close_inherited_pipe()


os.register_at_fork(after_in_child=_close_inherited_pipes)


class PrespawnedProcess:
    """A process for a later engine: it imports modules and waits for the start message.

    The process exits when this object is closed or collected, but not because a copy in a fork is.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        """Start the process. Raises OSError when it cannot be started."""
        self._creator = CreatorProcess()
        self._lock = threading.Lock()
        with blocked_interrupt():  # the child must not end with a traceback before it ignores Ctrl-C itself
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, *COMMAND, *modules], stdin=subprocess.PIPE, bufsize=0
            )

    def take(self) -> "subprocess.Popen[bytes] | None":
        """Return the process to send_start() to, once; None after that, and when it has ended."""
        with self._lock:
            process, self._process = self._process, None
        return process if process is not None and process.poll() is None else None

    def close(self) -> None:
        """Kill the process, unless take() has returned it."""
        if (process := self.take()) is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it; it counts as ended
                process.wait(MAX_EXIT_SECONDS)

    def __del__(self) -> None:
        if hasattr(self, "_process") and self._creator.is_this:  # without it the start failed
            self.close()


def spawn(
    spec: RunnerSpec, config: SchedulerConfig, *, enable_prefix_caching: bool = True,
    watch: LivenessConfig | None = None,
    vocabulary: GrammarTokenizer | None = None, cpus: Iterable[int] = (), launched: PrespawnedProcess | None = None,
    draft_spec: RunnerSpec | None = None,
) -> EngineProcess:  # fmt: skip
    """Start a process with an engine and return at once; its clients receive Ready or StartFailed.

    The environment passes through; the engine runs on `cpus`, or on those of its spawner. A prespawned process that
    still runs is used. Raises OSError when the process cannot be started.
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
        log_level=_stream_log_level(), stop_timeout=watch.stop_timeout / 2, vocabulary=vocabulary,
        cpus=tuple(sorted(cpus)), draft_spec=draft_spec,
    ))  # fmt: skip
    # The message may be megabytes, and the child reads it only after its imports.
    threading.Thread(target=engine.send_start, args=(start,), name="chairlift-spawn", daemon=True).start()
    return engine


def _stream_log_level() -> int:
    """Return the level at which this process logs to a stream: a child shares its standard error."""
    root = logging.getLogger("chairlift")
    streams = [each.level for each in root.handlers if type(each) is logging.StreamHandler]
    return max(root.getEffectiveLevel(), min(streams, default=0))


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="chairlift-engine-"))
    if len(os.fsencode(folder / SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="chairlift-engine-", dir="/tmp"))
    return folder
