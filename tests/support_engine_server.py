"""ServerHarness: an EngineServer without a socket, and the messages sent to its clients."""

from collections import deque
from collections.abc import Callable
from typing import Any

from chairlift.core.clock import Clock
from chairlift.core.engine_output import EngineOutput
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.ipc.engine_server import EngineServer
from chairlift.engine.ipc.messages import (
    PROTOCOL,
    Hello,
    Outputs,
    RemoteReply,
    ToClient,
    ToEngine,
    decode_engine_message,
    encode,
)
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig
from support_process import wait_until

HELLO = Hello(PROTOCOL, 1.0, 5.0)


class ServerHarness:
    """An engine server with its engine and the messages sent to its clients.

    `run_until` runs the callbacks that other threads posted.
    """

    def __init__(
        self, fake: FakeConfig | None = None, clock: Clock | None = None, **options: Any
    ) -> None:  # fmt: skip
        self.messages: dict[bytes, list[ToClient]] = {}
        self.not_reading: set[bytes] = set()
        self.posted: deque[Callable[[], None]] = deque()
        self.config = SchedulerConfig(**options)
        self.server = EngineServer(self._send, self.posted.append, self.config, pid=77, clock=clock)
        self.engine = InlineClient(EngineLoop(FakeRunner(fake or FakeConfig()), self.config))

    def _send(self, identity: bytes, frame: bytes) -> bool:
        if identity in self.not_reading:
            return False
        self.messages.setdefault(identity, []).append(decode_engine_message(frame))
        return True

    def send(self, identity: bytes, message: ToEngine | bytes, now: float = 0.0) -> None:
        self.server.receive(identity, message if isinstance(message, bytes) else encode(message), now)

    def start_engine(self) -> None:
        self.server.engine_started(self.engine)

    def run_until(self, until: Callable[[], bool]) -> None:
        def step() -> bool:
            while self.posted:
                self.posted.popleft()()
            return until()

        wait_until(step)

    def outputs(self, identity: bytes, name: str) -> list[EngineOutput]:
        return [
            output
            for message in self.messages.get(identity, [])
            if isinstance(message, Outputs)
            for output in message.outputs
            if output.request_id == name
        ]

    def wait_for_end(self, identity: bytes, name: str) -> EngineOutput:
        self.run_until(lambda: any(output.finish_reason for output in self.outputs(identity, name)))
        (last,) = [output for output in self.outputs(identity, name) if output.finish_reason]
        return last

    def wait_for_reply(self, identity: bytes, number: int) -> RemoteReply:
        def replies() -> list[RemoteReply]:
            messages = self.messages.get(identity, [])
            return [message for message in messages if isinstance(message, RemoteReply) and message.number == number]

        self.run_until(lambda: bool(replies()))
        (message,) = replies()
        return message
