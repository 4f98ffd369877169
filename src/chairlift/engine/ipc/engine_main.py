"""`python -m chairlift.engine.ipc.engine_main`: an engine in a process of its own.

    main thread     the socket (ROUTER), heartbeats, signals, the pipe to the spawner; never waits for the engine
    engine thread   the loop (inline.py); hands each step's news over through a mailbox, one wake-up a step
    imports         before all that, of the modules that are named as arguments, while the start message is awaited

The process reads a Start message from standard input and leaves when that pipe closes: when it is told to stop, and
when its spawner died. SIGTERM and SIGINT are the spawner's to handle: they may reach the whole group (Ctrl-C, systemd),
and what is open shall have its time to end. Logs, and whatever the runner prints, go to standard error.
"""

import array
import contextlib
import fcntl
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

from chairlift.core.cpu_affinity import lower_priority, pin_process, thread_ids, usable_cpus
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.gc_tuning import tune_gc
from chairlift.engine.ipc.engine_server import EngineServer
from chairlift.engine.ipc.messages import StartMessage, WireError, as_engine_error, read_start
from chairlift.engine.ipc.spawn import LENGTH_BYTES
from chairlift.engine.ipc.wakeup_queue import WakeupQueue

log = logging.getLogger(__name__)

MAX_UNREAD_MESSAGES = 1000
"""Far beyond what the desk lets lie about; a client that reaches it is dropped."""

SWITCH_SECONDS = 0.0005
"""How long the engine's thread may keep Python's lock while the main thread has a message to send."""

NICENESS = 5
"""Beyond the process's own, of an engine whose clients have no processor to themselves: they have little to do, and
others wait for it."""

OUTPUT_INTERVAL_SECONDS = 0.002
"""That such a client gets no news for each choice that it has got news of: see ADR 0022."""

MAX_MESSAGES_PER_POLL = 256
PARENT_SECONDS = 1.0
LINGER_MS = 500

Command = Callable[[], None]


class EngineProcessMain:
    """The main thread's work, from the start message to the last goodbye."""

    def __init__(self, start: StartMessage, spawner: int) -> None:
        """Listen at the address; `spawner` is a descriptor that ends when the spawner goes."""
        self._start = start
        self._spawner = spawner
        self._parent = os.getppid()
        self._mailbox: WakeupQueue[Command] = WakeupQueue()
        self._stop_requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, MAX_UNREAD_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(start.address)
        self._desk = EngineServer(self._send, self._mailbox.put, start.config, os.getpid())
        self._engine: InlineClient | None = None
        self._poller = zmq.Poller()
        for source in (self._socket, self._mailbox.fileno(), spawner):
            self._poller.register(source, zmq.POLLIN)

    def run(self) -> int:
        """Serve until there is a reason to leave; returns the exit code."""
        threading.Thread(target=self._open, name="chairlift-start", daemon=True).start()
        pause = 0.0
        while (reason := self._reason()) is None:
            pause = self._turn(pause)
        log.info("leaving: %s", reason)
        self._close(reason)
        return 0 if self._stop_requested else 1

    # -- one turn --------------------------------------------------------------------------------------------------

    def _turn(self, pause: float) -> float:
        """Wait for something to do, at most so many seconds, and do it; returns how long the next turn may wait."""
        events = dict(self._poller.poll(int(pause * 1000) + 1))
        if self._spawner in events:  # its end, or a word: there is only one that the spawner says after the start
            os.read(self._spawner, 4096)
            self._stop_requested = True
        now = time.monotonic()
        for _ in range(MAX_MESSAGES_PER_POLL):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(frames) == 1:
                self._desk.receive(identity, frames[0], now)
            else:
                log.warning("dropped: a message of %d parts", len(frames))
        for command in self._mailbox.drain():
            command()
        return self._desk.tick(time.monotonic())

    def _reason(self) -> str | None:
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

    # -- begin and end ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Start the engine, in a thread of its own: clients are answered meanwhile."""
        others = thread_ids()
        try:
            runner = self._start.spec.build()
            loop = EngineLoop(runner, self._start.config, enable_prefix_caching=self._start.enable_prefix_caching)
            engine = InlineClient(loop, self._start.vocabulary)
            tune_gc()
        except BaseException as error:
            log.error("the engine did not start", exc_info=error)
            told = as_engine_error(error, "the engine did not start")
            self._mailbox.put(lambda: self._desk.engine_failed(told))
            return
        is_close = usable_cpus() <= frozenset(engine.info.busy_cpus)
        if is_close:  # its clients have no processor that it does not compute on
            lower_priority(thread_ids() - others, NICENESS)
        self._mailbox.put(lambda: self._opened(engine, OUTPUT_INTERVAL_SECONDS if is_close else 0.0))

    def _opened(self, engine: InlineClient, pause: float) -> None:
        self._engine = engine
        self._desk.engine_started(engine, pause)

    def _close(self, reason: str) -> None:
        """End every request, tell everybody; a step that does not end is not waited for longer than stop_timeout."""
        if self._engine is not None:
            closing = threading.Thread(target=self._engine.close, daemon=True)
            closing.start()
            closing.join(self._start.stop_timeout)
        for command in self._mailbox.drain():
            command()
        self._desk.shutdown(reason)
        self._socket.close(LINGER_MS)
        self._context.term()


def read_message(source: int) -> bytes:
    """Read one message behind its length from a pipe. Raises WireError when the pipe ends before it."""
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
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    if modules := sys.argv[1:]:  # of a spawner that has yet to find out what it wants: they are there by then
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
    """Wait for the spawner's word; False when it is gone, or wants no engine."""
    parent = os.getppid()
    while not select.select([spawner], [], [], PARENT_SECONDS)[0]:
        if os.getppid() != parent:  # a fork of the spawner may still hold the pipe
            return False
    pending = array.array("i", [0])
    fcntl.ioctl(spawner, termios.FIONREAD, pending)
    return pending[0] > 0


def _import(modules: Sequence[str]) -> None:
    """Import modules; where one cannot be, whoever needs it will say so."""
    with contextlib.suppress(Exception):
        for module in modules:
            importlib.import_module(module)


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
        log.exception("the engine's process died of a fault")
    finally:
        logging.shutdown()
        os._exit(code)  # a step that hangs, or a library's thread, must not keep the process
