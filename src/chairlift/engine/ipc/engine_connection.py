"""Link: a client's end of the line to one engine process, and the judgement whether that engine is alive."""

import contextlib
import logging
import math
import os
import sys
import time

import zmq

from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.engine.ipc.liveness import LivenessConfig, SilenceTimer
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
from chairlift.engine.ipc.spawn import EngineProcess

log = logging.getLogger(__name__)

MAX_UNREAD_MESSAGES = 1000
MESSAGES_A_TURN = 256
LAST_WORDS_SECONDS = 0.05
LINGER_MS = 200

SPAWNER_PATIENCE = 60.0
"""Seconds that the engine grants its spawner, which may be busy: that it died shows by the pipe between them."""


class EngineConnection:
    """One socket (DEALER) to one engine; belongs to one thread."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, bell: int, watch: LivenessConfig,
        process: EngineProcess | None,
    ) -> None:  # fmt: skip
        """Connect and say hello; `bell` is a descriptor that ends the waiting, `process` is ours to watch if any."""
        self._watch = watch
        self._process = process
        self._began = self._pulsed = now = time.monotonic()
        self._silence = SilenceTimer(watch.interval, now)
        self.ready = False
        self.load = LoadReport(state=ReplicaState.STARTING)
        self._warmup_age, self._warmed = 0.0, -math.inf
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVHWM, MAX_UNREAD_MESSAGES)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(bell, zmq.POLLIN)
        self._death = _death_of(process)
        if self._death is not None:
            self._poller.register(self._death, zmq.POLLIN)
        self.send_hello()

    def send_hello(self) -> None:
        """Say hello, again if the engine has forgotten us; no request is taken before its welcome."""
        self.ready = False
        self._unacknowledged = 0
        limit = self._watch.heartbeat_timeout
        patience = limit if self._process is None else max(limit, SPAWNER_PATIENCE)
        self.send(Hello(PROTOCOL, self._watch.interval, patience))

    def send(
        self, message: Hello | Submit | Abort | WatchSteps | RemoteCall | Ack | ClientHeartbeat | Goodbye | bytes
    ) -> None:
        """Send a message, encoded or not; never waits."""
        self._socket.send(message if isinstance(message, bytes) else encode(message), zmq.NOBLOCK)

    def acknowledge(self) -> None:
        """A message with outputs was read; the engine is told now and then."""
        self._unacknowledged += 1
        if self._unacknowledged >= ACK_WINDOW // 4:
            self.send(Ack(self._unacknowledged))
            self._unacknowledged = 0

    def receive(self) -> list[ToClient]:
        """Wait, one heartbeat at most, and return what arrived."""
        now = time.monotonic()
        if now - self._pulsed >= self._watch.interval:
            self._pulsed = now
            self.send(ClientHeartbeat())
        self._poller.poll(int(max(0.0, self._pulsed + self._watch.interval - now) * 1000) + 1)
        return self._read()

    @property
    def warmup_seen_at(self) -> float:
        """Monotonic seconds until which a warm-up went on, as far as is known: now, or long ago; from any thread."""
        return time.monotonic() if self._warmup_age > 0 else self._warmed

    def failure_reason(self) -> str | None:
        """Say why the engine counts as dead, None while it lives; called after everything that came was received."""
        if self._process is not None and (code := self._process.exit_code) is not None:
            return f"the engine process ended with exit code {code}"
        now, watch = time.monotonic(), self._watch
        silent = self._silence.look(now)
        patience = watch.heartbeat_timeout - watch.interval if self.ready else watch.start_heartbeat_timeout
        if silent > patience:
            return f"the engine process has been silent for {silent:.1f} s, its limit is {watch.heartbeat_timeout:g} s"
        if self.load.step_age_seconds > watch.step_timeout:
            age = self.load.step_age_seconds
            return f"the engine hangs: a step takes {age:.1f} s, the limit is {watch.step_timeout:g} s"
        if self._warmup_age > watch.start_timeout:
            return f"the engine hangs: a warm-up takes {self._warmup_age:.1f} s, the limit is {watch.start_timeout:g} s"
        if not self.ready and now - self._began > watch.start_timeout:
            return f"the engine did not start within {watch.start_timeout:g} s"
        return None

    def drain_socket(self) -> list[ToClient]:
        """Return what a dead engine had still sent."""
        self._socket.poll(int(LAST_WORDS_SECONDS * 1000))
        return self._read()

    def close(self, reason: str) -> None:
        """Say goodbye and leave."""
        with contextlib.suppress(zmq.ZMQError):
            self.send(Goodbye(reason))
        self._socket.close(LINGER_MS)
        if self._death is not None:
            os.close(self._death)
            self._death = None

    def _read(self) -> list[ToClient]:
        messages: list[ToClient] = []
        for _ in range(MESSAGES_A_TURN):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._silence.heard(time.monotonic())
            try:
                message = decode_engine_message(frame)
            except WireError as error:
                log.warning("dropped: %s", error)
                continue
            if isinstance(message, EngineHeartbeat):
                self.load = message.load
                if self._warmup_age > 0:
                    self._warmed = time.monotonic()
                self._warmup_age = message.warmup_age
            else:
                messages.append(message)
        return messages


def _death_of(process: EngineProcess | None) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None where the system has no such thing."""
    if process is None or sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        return None
