"""EngineProcessMain: runs an engine process, started by `python -m chairlift.engine.ipc.engine_main`.

    main thread     the socket (ROUTER), heartbeats, signals, the pipe to the spawner; never waits for the engine
    engine thread   the loop (inline.py); passes each step's outputs on through a wakeup queue, one wake-up a step
    imports         first, of the modules that are named as arguments, while the start message is awaited

The process reads a StartMessage from standard input and exits when that pipe closes or carries STOP, and when its
spawner ended. The spawner handles SIGTERM and SIGINT: they may reach the whole process group (Ctrl-C, systemd), and
open requests need their time to end. Logs, and the output of the runner, go to standard error.
"""

import array
import contextlib
import fcntl
import gc
import importlib
import logging
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from chairlift.core.cpu_affinity_and_priority import pin_process, usable_cpus
from chairlift.core.errors import ConfigError, ModelError
from chairlift.core.host.process_activity import RunQueueDelay
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.gc_tuning import tune_gc
from chairlift.engine.ipc.engine_priority import EnginePriority
from chairlift.engine.ipc.engine_process import LENGTH_BYTES
from chairlift.engine.ipc.engine_server import EngineServer
from chairlift.engine.ipc.error_encoding import as_engine_error
from chairlift.engine.ipc.messages import StartMessage, WireError, read_start
from chairlift.engine.ipc.wakeup_queue import WakeupQueue

log = logging.getLogger(__name__)

MAX_UNREAD_MESSAGES = 1000
"""Send limit of the socket, far beyond what the engine server leaves unread; a client that reaches it is dropped."""

SWITCH_SECONDS = 0.0005
"""How long the engine thread may keep the GIL while the main thread has a message to send."""

OUTPUT_INTERVAL_SECONDS = 0.002
"""Seconds without outputs, for each choice in the last message, for a client that shares the CPUs: see ADR 0022."""

MAX_MESSAGES_PER_POLL = 256
PARENT_CHECK_SECONDS = 1.0
LINGER_MS = 500
CLOSE_SECONDS = 2 * LINGER_MS / 1000
"""How long the end of the sockets may take: libzmq may wait for ever for a peer that was killed while it connected."""

Command = Callable[[], None]


class EngineProcessMain:
    """The main thread of an engine process, from the start message to the Goodbye."""

    def __init__(self, start: StartMessage, spawner: int) -> None:
        """Listen at the address; `spawner` is a descriptor that ends with the spawner."""
        self._start = start
        self._spawner = spawner
        self._parent = os.getppid()
        self._commands: WakeupQueue[Command] = WakeupQueue()
        self._stop_requested = False
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, signal.SIG_IGN)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, MAX_UNREAD_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(start.address)
        self._server = EngineServer(
            self._send, self._commands.put, start.config, os.getpid(), delay=RunQueueDelay().seconds
        )
        self._engine: InlineClient | None = None
        self._priority: EnginePriority | None = None
        self._poller = zmq.Poller()
        for source in (self._socket, self._commands.fileno(), spawner):
            self._poller.register(source, zmq.POLLIN)

    def run(self) -> int:
        """Serve until the engine stops; return the exit code."""
        threading.Thread(target=self._start_engine, name="chairlift-start", daemon=True).start()
        timeout = 0.0
        while (reason := self._stop_reason()) is None:
            timeout = self._run_once(timeout)
        log.info("the engine process stops: %s", reason)
        self._close(reason)
        return 0 if self._stop_requested else 1

    # -- one iteration ---------------------------------------------------------------------------------------------

    def _run_once(self, timeout: float) -> float:
        """Wait `timeout` seconds at most and handle all events; return the timeout of the next call."""
        events = dict(self._poller.poll(int(timeout * 1000) + 1))
        if self._spawner in events:  # its end, or STOP: the spawner sends no other message after the start
            os.read(self._spawner, 4096)
            self._stop_requested = True
        now = time.monotonic()
        for _ in range(MAX_MESSAGES_PER_POLL):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(frames) == 1:
                self._server.receive(identity, frames[0], now)
            else:
                log.warning("dropped: a message of %d parts, expected 1", len(frames))
        for command in self._commands.drain():
            command()
        if self._priority is not None:
            self._priority.check()
        return self._server.tick(time.monotonic())

    def _stop_reason(self) -> str | None:
        if self._engine is not None and self._engine.fatal_error is not None:
            return str(self._engine.fatal_error)
        if os.getppid() != self._parent:  # a fork of the spawner may still hold the pipe
            self._stop_requested = True
        return "the engine was stopped" if self._stop_requested else None

    def _send(self, identity: bytes, frame: bytes) -> bool:
        try:
            self._socket.send_multipart((identity, frame), zmq.NOBLOCK, copy=True)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    # -- start and stop --------------------------------------------------------------------------------------------

    def _start_engine(self) -> None:
        """Start the engine, in a thread of its own: clients are served meanwhile."""
        try:
            start, draft = self._start, self._start.draft_spec
            loop = EngineLoop(
                start.spec.build(), start.config, enable_prefix_caching=start.enable_prefix_caching,
                draft_runner=None if draft is None else draft.build(),
            )  # fmt: skip
            engine = InlineClient(loop, self._start.vocabulary)
            tune_gc()
        except BaseException as error:
            if not isinstance(error, ConfigError | ModelError):  # whose sentence the client reports
                log.error("the engine did not start", exc_info=error)
            reported = as_engine_error(error, "the engine did not start")
            self._commands.put(lambda: self._server.engine_failed(reported))
            return
        self._commands.put(lambda: self._on_started(engine))

    def _on_started(self, engine: InlineClient) -> None:
        self._engine = engine
        shares_cpus = usable_cpus() <= frozenset(engine.info.busy_cpus)  # it computes on all processors of its clients
        if shares_cpus and engine.info.may_have_low_priority:
            self._priority = EnginePriority(engine)
        self._server.engine_started(engine, OUTPUT_INTERVAL_SECONDS if shares_cpus else 0.0)

    def _close(self, reason: str) -> None:
        """End every request and notify all clients; wait at most stop_timeout for the running step."""
        if self._engine is not None:
            closing = threading.Thread(target=self._engine.close, daemon=True)
            closing.start()
            closing.join(self._start.stop_timeout)
        for command in self._commands.drain():
            command()
        self._server.shutdown(reason)
        close_sockets(self._context, self._socket)


def close_sockets(context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]") -> bool:
    """Send what the socket still holds, for LINGER_MS, and end the context; returns False after CLOSE_SECONDS."""

    def close() -> None:
        socket.close(LINGER_MS)
        context.term()

    closing = threading.Thread(target=close, name="chairlift-close", daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
    return not closing.is_alive()


def read_message(source: int) -> bytes:
    """Read one length-prefixed message from a pipe. Raises WireError when the pipe ends before it."""
    length = int.from_bytes(_read_exactly(source, LENGTH_BYTES), "big")
    return _read_exactly(source, length)


def _read_exactly(source: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(source, count - len(parts))
        if not part:
            raise WireError(f"the start message ended after {len(parts)} of {count} bytes")
        parts += part
    return bytes(parts)


def main() -> int:
    """Run the engine that standard input describes; returns the exit code."""
    spawner = os.dup(0)
    with open(os.devnull, "rb") as null_file:
        os.dup2(null_file.fileno(), 0)
    os.dup2(2, 1)
    if modules := sys.argv[1:]:  # the spawner sends the start message later
        threading.Thread(target=_import, args=(modules,), name="chairlift-imports", daemon=True).start()
        if not _wait_for_start(spawner):
            return 1
    try:
        start = read_start(read_message(spawner))
    except WireError as error:
        sys.stderr.write(f"chairlift.engine.ipc.engine_main is started by chairlift itself: {error}\n")
        return 2
    pin_process(start.cpus)
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s engine[%(process)d] %(levelname)s %(message)s"
    )
    logging.getLogger("chairlift").setLevel(start.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return EngineProcessMain(start, spawner).run()
    finally:
        _remove_socket(start.address)


def _wait_for_start(spawner: int) -> bool:
    """Wait for the start message; returns False when the spawner ended or closed the pipe."""
    parent = os.getppid()
    while not select.select([spawner], [], [], PARENT_CHECK_SECONDS)[0]:
        if os.getppid() != parent:  # a fork of the spawner may still hold the pipe
            return False
    pending = array.array("i", [0])
    fcntl.ioctl(spawner, termios.FIONREAD, pending)
    return pending[0] > 0


def _import(modules: Sequence[str]) -> None:
    """Import modules; a failed import is reported by the code that needs the module.

    Imported objects live as long as the process: collecting garbage meanwhile takes a tenth of the time of the imports
    and frees nothing.
    """
    gc.disable()
    with contextlib.suppress(Exception):
        for module in modules:
            importlib.import_module(module)
    gc.freeze()
    gc.enable()


def _remove_socket(address: str) -> None:
    path = Path(address.removeprefix("ipc://"))
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except Exception:
        log.exception("the engine process ended with an error")
    finally:
        logging.shutdown()
        os._exit(code)  # a step that hangs, or a library's thread, must not keep the process alive
