"""EngineConnection sends Hello and heartbeats, decodes messages, and detects a failed engine."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.engine.ipc.engine_connection import EngineConnection
from chairlift.engine.ipc.liveness import LivenessConfig
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
from support_process import PATIENCE

READY = LoadReport(state=ReplicaState.READY)
LONG = LivenessConfig(heartbeat_timeout=600.0)


class Engine:
    """The other end: a socket in this thread."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(address)
        self.peer = b""

    def hear(self) -> ToEngine:
        assert self.socket.poll(int(PATIENCE * 1000)), "nothing was said"
        self.peer, frame = self.socket.recv_multipart()
        return read(frame)

    def say(self, message: ToClient | bytes) -> None:
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


def receive(link: EngineConnection) -> list[ToClient]:
    end = time.monotonic() + PATIENCE
    while not (got := link.receive()):
        assert time.monotonic() < end
    return got


def test_it_says_hello_and_reads_what_comes(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    engine, link = Engine(context, address), EngineConnection(context, address, wakeup.fileno(), LONG, None)
    assert engine.hear() == Hello(PROTOCOL, 120.0, 600.0) and not link.ready
    engine.say(b"\xc1 no message")
    engine.say(EngineHeartbeat(replace(READY, steps=9)))
    engine.say(UnknownClient())
    assert receive(link) == [UnknownClient()]
    assert link.load.steps == 9
    link.close("enough")
    assert engine.hear() == Goodbye("enough")


def test_it_has_a_pulse(context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]) -> None:
    engine = Engine(context, address)
    link = EngineConnection(context, address, wakeup.fileno(), LivenessConfig(heartbeat_timeout=0.1), None)
    assert isinstance(engine.hear(), Hello)
    for _ in range(3):
        link.receive()
    assert engine.hear() == ClientHeartbeat()
    link.close("")


def test_a_wakeup_ends_the_wait(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    link = EngineConnection(context, address, wakeup.fileno(), LONG, None)
    wakeup.wake()
    began = time.monotonic()
    assert link.receive() == []
    assert time.monotonic() - began < PATIENCE
    link.close("")


def test_silence_is_a_fault_and_has_another_limit_while_the_engine_starts(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    watch = LivenessConfig(heartbeat_timeout=0.2, start_heartbeat_timeout=600.0)
    link = EngineConnection(context, address, wakeup.fileno(), watch, None)
    for _ in range(20):
        link.receive()
        assert link.failure_reason() is None, "it starts"
    link.ready = True
    for _ in range(20):
        link.receive()
        if (said := link.failure_reason()) is not None:
            break
    assert said is not None and "silent" in said
    link.close("")


def test_an_old_step_is_a_fault_though_the_engine_speaks(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    link = EngineConnection(context, address, wakeup.fileno(), LivenessConfig(step_timeout=3.0), None)
    link.ready = True
    link.load = replace(READY, step_age_seconds=3.0)
    assert link.failure_reason() is None
    link.load = replace(READY, step_age_seconds=3.1)
    assert link.failure_reason() == "the engine hangs: a step takes 3.1 s, the limit is 3 s"
    link.close("")


def test_a_warm_up_may_take_as_long_as_a_start_and_no_longer(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]
) -> None:
    engine = Engine(context, address)
    link = EngineConnection(
        context, address, wakeup.fileno(), replace(LONG, step_timeout=3.0, start_timeout=30.0), None
    )
    engine.hear()
    link.ready = True

    def hears(warmup_age: float) -> None:
        engine.say(EngineHeartbeat(READY, warmup_age))
        engine.say(UnknownClient())
        assert receive(link) == [UnknownClient()]

    hears(0.0)
    assert link.warmup_seen_at < 0 and link.failure_reason() is None
    hears(30.0)
    assert link.warmup_seen_at > 0 and link.failure_reason() is None
    hears(30.1)
    assert link.failure_reason() == "the engine hangs: a warm-up takes 30.1 s, the limit is 30 s"
    hears(0.0)
    assert link.warmup_seen_at == link.warmup_seen_at > 0 and link.failure_reason() is None, "it is over"
    link.close("")


def test_a_start_has_an_end(context: "zmq.Context[zmq.Socket[bytes]]", address: str, wakeup: WakeupQueue[int]) -> None:
    link = EngineConnection(context, address, wakeup.fileno(), LivenessConfig(start_timeout=1e-6), None)
    time.sleep(0.01)
    assert link.failure_reason() == "the engine did not start within 1e-06 s"
    link.ready = True
    assert link.failure_reason() is None
    link.close("")
