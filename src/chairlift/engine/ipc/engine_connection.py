"""EngineConnection: a client's connection to one engine process, and the check whether that process is alive."""

import contextlib
import logging
import math
import os
import sys
import time

import zmq

from chairlift.core.host.process_end import describe_end
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.engine.ipc.engine_process import EngineProcess
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.ipc.messages import (
    ACK_WINDOW,
    PROTOCOL,
    Abort,
    Ack,
    ClientHeartbeat,
    EngineHeartbeat,
    Goodbye,
    Hello,
    RemoteCall,
    Submit,
    ToClient,
    WatchSteps,
    WireError,
    decode_engine_message,
    encode,
)
from chairlift.engine.ipc.silent_engine_check import SilentEngineCheck

log = logging.getLogger(__name__)

MAX_UNREAD_MESSAGES = 1000
MAX_MESSAGES_PER_READ = 256
DRAIN_SECONDS = 0.05
LINGER_MS = 200

SPAWNER_SILENCE_LIMIT = 60.0
"""Seconds of silence that the engine allows its spawner, which may be busy: the pipe between them shows its end."""


class EngineConnection:
    """One socket (DEALER) to one engine; belongs to one thread."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup_fd: int, watch: LivenessConfig,
        process: EngineProcess | None,
    ) -> None:  # fmt: skip
        """Connect and send Hello.

        `wakeup_fd` is a descriptor that ends receive(); `process` is the process to watch, if any.
        """
        self._watch = watch
        self._process = process
        self._started_at = self._last_heartbeat_at = now = time.monotonic()
        self._silence = SilentEngineCheck(watch, now, None if process is None else process.pid)
        self.ready = False
        self.load = LoadReport(state=ReplicaState.STARTING)
        self._warmup_age, self._last_warmup_at = 0.0, -math.inf
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVHWM, MAX_UNREAD_MESSAGES)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(wakeup_fd, zmq.POLLIN)
        self._exit_fd = _open_exit_fd(process)
        if self._exit_fd is not None:
            self._poller.register(self._exit_fd, zmq.POLLIN)
        self.send_hello()

    def send_hello(self) -> None:
        """Send Hello, again if the engine has dropped this client; no request is sent before its Ready."""
        self.ready = False
        self._unacknowledged = 0
        timeout = self._watch.heartbeat_timeout
        silence_limit = timeout if self._process is None else max(timeout, SPAWNER_SILENCE_LIMIT)
        self.send(Hello(PROTOCOL, self._watch.interval, silence_limit))

    def send(
        self, message: Hello | Submit | Abort | WatchSteps | RemoteCall | Ack | ClientHeartbeat | Goodbye | bytes
    ) -> None:
        """Send a message, encoded or not; never waits."""
        self._socket.send(message if isinstance(message, bytes) else encode(message), zmq.NOBLOCK)

    def acknowledge(self) -> None:
        """Count a message with outputs as read; send an Ack for every ACK_WINDOW // 4 of them."""
        self._unacknowledged += 1
        if self._unacknowledged >= ACK_WINDOW // 4:
            self.send(Ack(self._unacknowledged))
            self._unacknowledged = 0

    def receive(self) -> list[ToClient]:
        """Wait for one heartbeat interval at most and return the messages that arrived."""
        now = time.monotonic()
        if now - self._last_heartbeat_at >= self._watch.interval:
            self._last_heartbeat_at = now
            self.send(ClientHeartbeat())
        self._poller.poll(int(max(0.0, self._last_heartbeat_at + self._watch.interval - now) * 1000) + 1)
        return self._read()

    @property
    def warmup_seen_at(self) -> float:
        """Monotonic seconds of the last known moment of a warm-up: now, or long ago; from any thread."""
        return time.monotonic() if self._warmup_age > 0 else self._last_warmup_at

    @property
    def hang_reason(self) -> str:
        """Why the engine hangs, by its last heartbeat; "" where it does not. From any thread."""
        return self._watch.hang_reason(self.load.step_age_seconds, self._warmup_age)

    def failure_reason(self) -> str | None:
        """Return why the engine counts as failed, None while it is alive; call it after receive()."""
        if self._process is not None and (code := self._process.exit_code) is not None:
            return f"the engine process {describe_end(code)}"
        now, watch = time.monotonic(), self._watch
        if reason := self._silence.failure_reason(now, is_ready=self.ready) or self.hang_reason:
            return reason
        if not self.ready and now - self._started_at > watch.start_timeout:
            return f"the engine did not start within {watch.start_timeout:g} s"
        return None

    def drain_socket(self) -> list[ToClient]:
        """Return the messages that a failed engine had still sent."""
        self._socket.poll(int(DRAIN_SECONDS * 1000))
        return self._read()

    def close(self, reason: str) -> None:
        """Send Goodbye and close the socket."""
        with contextlib.suppress(zmq.ZMQError):
            self.send(Goodbye(reason))
        self._socket.close(LINGER_MS)
        if self._exit_fd is not None:
            os.close(self._exit_fd)
            self._exit_fd = None

    def _read(self) -> list[ToClient]:
        messages: list[ToClient] = []
        for _ in range(MAX_MESSAGES_PER_READ):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._silence.message_received(time.monotonic())
            try:
                message = decode_engine_message(frame)
            except WireError as error:
                log.warning("dropped: %s", error)
                continue
            if isinstance(message, EngineHeartbeat):
                self.load = message.load
                if self._warmup_age > 0:
                    self._last_warmup_at = time.monotonic()
                self._warmup_age = message.warmup_age
            else:
                messages.append(message)
        return messages


def _open_exit_fd(process: EngineProcess | None) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None without pidfd support."""
    if process is None or sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        return None
