"""EngineConnection sends Hello and heartbeats, decodes messages, and detects a failed engine."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.engine.ipc.engine_connection import EngineConnection
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.ipc.messages import (
    PROTOCOL,
    ClientHeartbeat,
    EngineHeartbeat,
    Goodbye,
    Hello,
    ToClient,
    ToEngine,
    UnknownClient,
    encode,
)
from chairlift.engine.ipc.messages import decode_client_message as read
from chairlift.engine.ipc.wakeup_queue import WakeupQueue
from support_process import TIMEOUT_SECONDS

READY = LoadReport(state=ReplicaState.READY)
LONG = LivenessConfig(heartbeat_timeout=600.0)


class Engine:
    """The engine's end of the connection: a socket in this thread."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(address)
        self.peer = b""

    def receive(self) -> ToEngine:
        assert self.socket.poll(int(TIMEOUT_SECONDS * 1000)), "no message came"
        self.peer, frame = self.socket.recv_multipart()
        return read(frame)

    def send(self, message: ToClient | bytes) -> None:
        self.socket.send_multipart([self.peer, message if isinstance(message, bytes) else encode(message)])


@pytest.fixture
def context() -> "Iterator[zmq.Context[zmq.Socket[bytes]]]":
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


@pytest.fixture
def wakeup() -> Iterator[WakeupQueue[int]]:
    wakeup_queue: WakeupQueue[int] = WakeupQueue()
    yield wakeup_queue
    wakeup_queue.close()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/engine"


def receive(connection: EngineConnection) -> list[ToClient]:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not (messages := connection.receive()):
        assert time.monotonic() < end
    return messages


def test_it_sends_hello_and_receives_messages(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    engine, connection = Engine(context, address), EngineConnection(context, address, wakeup.fileno(), LONG, None)
    assert engine.receive() == Hello(PROTOCOL, 1.0, 600.0) and not connection.ready
    engine.send(b"\xc1 no message")
    engine.send(EngineHeartbeat(replace(READY, steps=9)))
    engine.send(UnknownClient())
    assert receive(connection) == [UnknownClient()]
    assert connection.load.steps == 9
    connection.close("enough")
    assert engine.receive() == Goodbye("enough")


def test_it_sends_heartbeats(context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]) -> None:
    engine = Engine(context, address)
    connection = EngineConnection(context, address, wakeup.fileno(), LivenessConfig(heartbeat_timeout=0.1), None)
    assert isinstance(engine.receive(), Hello)
    for _ in range(3):
        connection.receive()
    assert engine.receive() == ClientHeartbeat()
    connection.close("")


def test_a_wakeup_ends_the_wait(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    connection = EngineConnection(context, address, wakeup.fileno(), LONG, None)
    wakeup.wake()
    began = time.monotonic()
    assert connection.receive() == []
    assert time.monotonic() - began < TIMEOUT_SECONDS
    connection.close("")


def test_silence_is_a_fault_and_has_another_limit_while_the_engine_starts(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    watch = LivenessConfig(heartbeat_timeout=0.2, start_heartbeat_timeout=600.0)
    connection = EngineConnection(context, address, wakeup.fileno(), watch, None)
    for _ in range(20):
        connection.receive()
        assert connection.failure_reason() is None, "it starts"
    connection.ready = True
    for _ in range(20):
        connection.receive()
        if (reason := connection.failure_reason()) is not None:
            break
    assert reason is not None and "silent" in reason
    connection.close("")


def test_an_old_step_is_a_fault_though_the_engine_speaks(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    connection = EngineConnection(context, address, wakeup.fileno(), LivenessConfig(step_timeout=3.0), None)
    connection.ready = True
    connection.load = replace(READY, step_age_seconds=3.0)
    assert connection.failure_reason() is None and connection.hang_reason == ""
    connection.load = replace(READY, step_age_seconds=3.1)
    assert connection.failure_reason() == "the engine hangs: a step takes 3.1 s, the limit is 3 s"
    assert connection.failure_reason() == connection.hang_reason
    connection.close("")


def test_a_warm_up_may_take_as_long_as_a_start_and_no_longer(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    engine = Engine(context, address)
    connection = EngineConnection(
        context, address, wakeup.fileno(), replace(LONG, step_timeout=3.0, start_timeout=30.0), None
    )
    engine.receive()
    connection.ready = True

    def receive_heartbeat(warmup_age: float) -> None:
        engine.send(EngineHeartbeat(READY, warmup_age))
        engine.send(UnknownClient())
        assert receive(connection) == [UnknownClient()]

    receive_heartbeat(0.0)
    assert connection.warmup_seen_at < 0 and connection.failure_reason() is None
    receive_heartbeat(30.0)
    assert connection.warmup_seen_at > 0 and connection.failure_reason() is None
    receive_heartbeat(30.1)
    assert connection.failure_reason() == "the engine hangs: a warm-up takes 30.1 s, the limit is 30 s"
    receive_heartbeat(0.0)
    assert connection.warmup_seen_at == connection.warmup_seen_at > 0 and connection.failure_reason() is None, (
        "it is over"
    )
    connection.close("")


def test_a_start_has_an_end(context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]) -> None:
    connection = EngineConnection(context, address, wakeup.fileno(), LivenessConfig(start_timeout=1e-6), None)
    time.sleep(0.01)
    assert connection.failure_reason() == "the engine did not start within 1e-06 s"
    connection.ready = True
    assert connection.failure_reason() is None
    connection.close("")
