"""EngineServer without a socket: clients that connect, call, disconnect, fall silent or stop reading."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chairlift.core.clock import Clock, FakeClock
from chairlift.core.errors import ConfigError, DuplicateRequestId, EngineDead, InvalidRequest, ModelError, QueueFull
from chairlift.core.load_report import ReplicaState
from chairlift.core.request import EngineOutput, FinishReason
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.ipc.engine_server import IDLE_SECONDS, LONGEST_PAUSE_SECONDS, EngineServer
from chairlift.engine.ipc.messages import (
    ACK_WINDOW,
    PROTOCOL,
    Abort,
    Ack,
    ClientHeartbeat,
    EngineHeartbeat,
    Goodbye,
    Hello,
    Outputs,
    Ready,
    RemoteCall,
    RemoteReply,
    StartFailed,
    Submit,
    ToClient,
    ToEngine,
    UnknownClient,
    WatchSteps,
    decode_engine_message,
    encode,
    read_answer,
)
from chairlift.engine.ipc.output_queue import OutputQueue
from chairlift.engine.runner.fake import FakeConfig, FakeRunner, expected_tokens
from support_process import PATIENCE, make_request, wait_until

HELLO = Hello(PROTOCOL, 1.0, 5.0)


class Harness:
    """An engine server, the messages sent to its clients, and its engine; `run` calls what other threads posted."""

    def __init__(
        self, fake: FakeConfig | None = None, clock: Clock | None = None, **options: Any
    ) -> None:  # fmt: skip
        self.messages: dict[bytes, list[ToClient]] = {}
        self.deaf: set[bytes] = set()
        self.posted: deque[Callable[[], None]] = deque()
        self.config = SchedulerConfig(**options)
        self.server = EngineServer(self._send, self.posted.append, self.config, pid=77, clock=clock)
        self.engine = InlineClient(EngineLoop(FakeRunner(fake or FakeConfig()), self.config))

    def _send(self, identity: bytes, frame: bytes) -> bool:
        if identity in self.deaf:
            return False
        self.messages.setdefault(identity, []).append(decode_engine_message(frame))
        return True

    def say(self, identity: bytes, message: ToEngine | bytes, now: float = 0.0) -> None:
        self.server.receive(identity, message if isinstance(message, bytes) else encode(message), now)

    def open(self) -> None:
        self.server.engine_started(self.engine)

    def run(self, until: Callable[[], bool]) -> None:
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

    def end(self, identity: bytes, name: str) -> EngineOutput:
        self.run(lambda: any(output.finish_reason for output in self.outputs(identity, name)))
        (last,) = [output for output in self.outputs(identity, name) if output.finish_reason]
        return last

    def answer(self, identity: bytes, number: int) -> RemoteReply:
        def found() -> list[RemoteReply]:
            messages = self.messages.get(identity, [])
            return [message for message in messages if isinstance(message, RemoteReply) and message.number == number]

        self.run(lambda: bool(found()))
        (message,) = found()
        return message


@pytest.fixture
def harnesses() -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(*arguments: Any, **options: Any) -> Harness:
        made.append(Harness(*arguments, **options))
        return made[-1]

    yield make
    for harness in made:
        harness.engine.close()


def test_a_client_hears_beats_while_the_engine_starts_and_a_welcome_then(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.say(b"a", HELLO)
    harness.server.tick(0.0)
    (beat,) = harness.messages[b"a"]
    assert isinstance(beat, EngineHeartbeat) and beat.load.state is ReplicaState.STARTING
    harness.open()
    assert harness.messages[b"a"][1] == Ready(77, harness.engine.info, harness.config)
    harness.say(b"b", HELLO)
    assert harness.messages[b"b"] == [harness.messages[b"a"][1]], "who comes later is welcome at once"


def test_beats_come_as_often_as_a_client_wants(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    assert harness.server.tick(0.0) == IDLE_SECONDS
    harness.say(b"a", HELLO, now=10.0)
    assert [harness.server.tick(now) for now in (10.0, 10.5, 11.0)] == [1.0, 0.5, 1.0]
    assert len(harness.messages[b"a"]) == 2


def test_a_failed_start_is_sent_to_all_clients(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.say(b"a", HELLO)
    harness.server.engine_failed(ModelError("no weights"))
    harness.say(b"b", HELLO)
    for name in (b"a", b"b"):
        (message,) = harness.messages[name]
        assert isinstance(message, StartFailed) and type(message.error) is ModelError


def test_a_request_runs_under_its_clients_own_id(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.open()
    requests = {name: make_request("same", prompt, max_tokens=9) for name, prompt in ((b"a", (1,)), (b"b", (2, 3)))}
    for name, request in requests.items():
        harness.say(name, HELLO)
        harness.say(name, Submit(request))
    for name, request in requests.items():
        assert harness.end(name, "same").finish_reason is FinishReason.LENGTH
        tokens = [token for output in harness.outputs(name, "same") for token in output.token_ids]
        assert tokens == expected_tokens(request.prompt_token_ids, request.params, FakeConfig())


def test_the_longest_id_that_is_allowed_works(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"a", Submit(make_request("x" * 256)))
    assert harness.end(b"a", "x" * 256).finish_reason is FinishReason.LENGTH


def test_what_the_engine_refuses_comes_back_as_the_last_output(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses(FakeConfig(seconds_per_step=0.01), max_queue_size=1, max_running_requests=1)
    harness.say(b"a", HELLO)
    harness.say(b"a", Submit(make_request("early")))
    assert type(harness.end(b"a", "early").error) is EngineDead
    harness.open()
    harness.say(b"a", Submit(make_request("bad", (999,))))
    error = harness.end(b"a", "bad").error
    assert error is not None and error.code == "token_out_of_range"
    harness.say(b"a", Submit(make_request("running", max_tokens=900)))
    harness.run(lambda: bool(harness.outputs(b"a", "running")))
    harness.say(b"a", Submit(make_request("running")))
    twice = harness.end(b"a", "running")
    assert type(twice.error) is DuplicateRequestId and "'running'" in str(twice.error)
    harness.say(b"a", Submit(make_request("waits")))
    harness.say(b"a", Submit(make_request("too many")))
    assert type(harness.end(b"a", "too many").error) is QueueFull


def test_an_abort_reaches_its_own_request_only(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses(FakeConfig(seconds_per_step=0.01))
    harness.open()
    for name in (b"a", b"b"):
        harness.say(name, HELLO)
        harness.say(name, Submit(make_request("same", max_tokens=900)))
    harness.say(b"a", Abort("same"))
    harness.say(b"a", Abort("unknown"))
    assert harness.end(b"a", "same").finish_reason is FinishReason.ABORT
    assert not any(output.finish_reason for output in harness.outputs(b"b", "same"))


@pytest.mark.parametrize("how", ["goodbye", "silence", "deafness", "hello again"])
def test_the_requests_of_a_client_that_is_gone_end(how: str, harnesses: Callable[..., Harness]) -> None:
    harness = harnesses(FakeConfig(seconds_per_step=0.005))
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"b", Hello(PROTOCOL, 100.0, 600.0))
    for number in range(3):
        harness.say(b"a", Submit(make_request(f"r{number}", max_tokens=1000)))
    harness.say(b"b", Submit(make_request("other", max_tokens=1000)))
    harness.run(lambda: bool(harness.outputs(b"a", "r0")))
    if how == "goodbye":
        harness.say(b"a", Goodbye("enough"))
    elif how == "silence":
        for now in range(1, 8):
            harness.server.tick(float(now))
    elif how == "deafness":
        harness.deaf.add(b"a")
        harness.run(lambda: harness.server.num_clients == 1)
    else:
        harness.say(b"a", HELLO)
    harness.run(lambda: harness.engine.load().running_requests == 1)
    harness.deaf.clear()
    assert harness.server.num_clients == (2 if how == "hello again" else 1)
    assert not any(output.finish_reason for output in harness.outputs(b"b", "other"))
    if how != "hello again":
        harness.say(b"a", ClientHeartbeat())
        assert harness.messages[b"a"][-1] == UnknownClient()


def test_a_pulse_breaks_the_silence(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.say(b"a", HELLO)
    for now in range(1, 20):
        harness.server.tick(float(now))
        harness.say(b"a", ClientHeartbeat(), now=float(now))
    assert harness.server.num_clients == 1


def test_a_server_that_slept_keeps_its_clients(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.say(b"a", HELLO)
    harness.server.tick(3600.0)
    assert harness.server.num_clients == 1


def test_an_unknown_client_is_notified(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.open()
    harness.say(b"x", Submit(make_request("r")))
    assert harness.messages[b"x"] == [UnknownClient()] and harness.server.num_clients == 0


@pytest.mark.parametrize(
    "hello",
    [
        Hello(PROTOCOL + 1, 1.0, 5.0),
        Hello(PROTOCOL, 0.0, 5.0),
        Hello(PROTOCOL, float("nan"), 5.0),
        Hello(PROTOCOL, 1.0, -1.0),
        Hello(PROTOCOL, 1.0, float("inf")),
    ],
)
def test_a_client_of_another_protocol_is_refused(hello: Hello, harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.say(b"x", hello)
    (message,) = harness.messages[b"x"]
    assert isinstance(message, StartFailed) and type(message.error) is ConfigError and harness.server.num_clients == 0


def test_what_is_no_message_is_dropped(harnesses: Callable[..., Harness], caplog: pytest.LogCaptureFixture) -> None:
    harness = harnesses()
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"a", b"\x80\x04\x95 a pickle")
    harness.say(b"b", b"")
    assert harness.server.num_clients == 1 and b"b" not in harness.messages
    assert "no message for an engine" in caplog.text


def test_questions_are_answered_without_waiting_for_the_step(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses(FakeConfig(seconds_per_step=0.3), max_running_requests=1)
    harness.open()
    for name in (b"a", b"b"):
        harness.say(name, HELLO)
    harness.say(b"a", Submit(make_request("running", max_tokens=900)))
    harness.run(lambda: bool(harness.outputs(b"a", "running")))
    harness.say(b"b", Submit(make_request("waits")))
    for number, name in ((1, b"a"), (2, b"b")):
        harness.say(name, RemoteCall(number, "scheduler_state"))
    mine = read_answer("scheduler_state", harness.answer(b"a", 1).payload)
    theirs = read_answer("scheduler_state", harness.answer(b"b", 2).payload)
    assert (mine["waiting_order"], theirs["waiting_order"]) == (["client 2: waits"], ["waits"])
    assert mine["states"] == {"running": "decoding", "client 2: waits": "pending"}
    assert theirs["states"] == {"client 1: running": "decoding", "waits": "pending"}
    assert theirs["wait_reasons"] == {"waits": "running_limit"}


@pytest.mark.parametrize("method", ["close", "submit", "__class__", "info", ""])
def test_only_remote_methods_can_be_called(method: str, harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"a", RemoteCall(1, method))
    assert type(harness.answer(b"a", 1).error) is InvalidRequest


def test_a_step_does_not_age_while_the_whole_process_sleeps(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses(FakeConfig(seconds_per_step=0.2))
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"a", Submit(make_request("r", max_tokens=900)))
    wait_until(lambda: harness.engine.step_started_at is not None)
    started_at = harness.engine.step_started_at
    assert started_at is not None
    harness.server.tick(started_at)
    harness.server.tick(started_at + 3600.0)  # Ctrl-Z and, an hour later, fg
    message = harness.messages[b"a"][-1]
    assert isinstance(message, EngineHeartbeat) and message.load.step_age_seconds <= 2 * IDLE_SECONDS


def test_beats_carry_counts_and_the_age_of_the_step(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses(FakeConfig(seconds_per_step=0.2))
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"a", Submit(make_request("r", max_tokens=900)))
    wait_until(lambda: harness.engine.step_started_at is not None)
    started_at = harness.engine.step_started_at
    assert started_at is not None
    for second in range(50):
        harness.say(b"a", ClientHeartbeat(), started_at + second)
        harness.server.tick(started_at + second)
    message = harness.messages[b"a"][-1]
    assert isinstance(message, EngineHeartbeat) and message.load.step_age_seconds == pytest.approx(49.0)
    now = [started_at + 50.0]

    def is_running() -> bool:
        now[0] += 1.0
        harness.say(b"a", ClientHeartbeat(), now[0])
        harness.server.tick(now[0])
        message = harness.messages[b"a"][-1]
        return isinstance(message, EngineHeartbeat) and message.load.running_requests == 1

    harness.run(is_running)


def test_beats_carry_the_age_of_a_warm_up(harnesses: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    harness, release = harnesses(), threading.Event()
    monkeypatch.setattr(harness.engine._loop._runner, "warmup", lambda: release.wait(PATIENCE))
    harness.open()
    harness.say(b"a", HELLO)
    warming = threading.Thread(target=harness.engine.warmup)
    warming.start()
    wait_until(lambda: harness.engine.warmup_started_at is not None)
    started_at = harness.engine.warmup_started_at
    assert started_at is not None and harness.engine.step_started_at is None
    for second in range(50):
        harness.say(b"a", ClientHeartbeat(), started_at + second)
        harness.server.tick(started_at + second)
    message = harness.messages[b"a"][-1]
    assert isinstance(message, EngineHeartbeat) and (message.warmup_age, message.load.step_age_seconds) == (
        pytest.approx(49.0),
        0.0,
    )
    release.set()
    warming.join(PATIENCE)
    harness.server.tick(started_at + 50.0)
    message = harness.messages[b"a"][-1]
    assert isinstance(message, EngineHeartbeat) and message.warmup_age == 0.0


def test_an_idle_server_posts_nothing(harnesses: Callable[..., Harness]) -> None:
    """A heartbeat starts one load call for the next heartbeat; its result starts none."""
    harness = harnesses()
    harness.open()
    harness.say(b"a", HELLO)
    harness.server.tick(0.0)
    wait_until(lambda: len(harness.posted) == 1)
    harness.posted.popleft()()
    assert harness.server.tick(0.1) > 0.5
    harness.engine.load()
    assert not harness.posted


def test_a_client_that_acknowledges_nothing_gets_a_window_and_is_dropped_when_too_much_waits(
    harnesses: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chairlift.engine.ipc.engine_server.MAX_BACKLOG", 100)
    harness = harnesses(FakeConfig(seconds_per_step=0.015))
    harness.open()
    harness.say(b"a", HELLO)
    for number in range(4):
        harness.say(b"a", Submit(make_request(f"r{number}", max_tokens=900)))
    (session,) = harness.server._sessions.values()

    def news() -> list[Outputs]:
        return [message for message in harness.messages[b"a"] if isinstance(message, Outputs)]

    harness.run(lambda: len(session.output_queue) > 100)
    assert len(news()) == ACK_WINDOW
    harness.server.tick(1.0)
    assert harness.server.num_clients == 0
    harness.run(
        lambda: not session.output_queue and not session.engine_ids and harness.engine.load().running_requests == 0
    )
    assert len(news()) == ACK_WINDOW and not harness.server._owners


def test_an_engine_that_ends_waits_for_no_client(
    harnesses: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []
    harness = harnesses(FakeConfig(seconds_per_step=0.005))
    monkeypatch.setattr(OutputQueue, "throttle", lambda self, count: waits.append(harness.engine.fatal_error is None))
    harness.open()
    harness.say(b"a", HELLO)
    for number in range(4):
        harness.say(b"a", Submit(make_request(f"r{number}", max_tokens=900)))
    (session,) = harness.server._sessions.values()
    harness.run(lambda: len(session.output_queue) > 10)
    assert waits
    harness.engine.close()
    assert all(waits) and sum(output.finish_reason is not None for output in session.output_queue.take()) == 4


def test_unsent_outputs_of_a_disconnected_client_are_dropped_at_little_cost(
    harnesses: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush of all outputs of a fast engine's second would keep the server silent for as long."""
    renamed: list[str] = []
    harness = harnesses(FakeConfig(seconds_per_step=0.005))
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"a", Submit(make_request("r", max_tokens=900)))
    session = harness.server._sessions[b"a"]
    harness.run(lambda: len(session.output_queue) > 20)
    rename = harness.server._with_client_id
    monkeypatch.setattr(
        harness.server, "_with_client_id", lambda *given: renamed.append(given[1].request_id) or rename(*given)
    )
    harness.say(b"a", Goodbye("enough"))
    harness.run(lambda: not session.output_queue and not session.engine_ids)
    assert len(renamed) == 1


class Refilled(deque[list[EngineOutput]]):
    """An output queue to which a fast engine adds a step whenever one is taken."""

    taken = 0

    def popleft(self) -> list[EngineOutput]:
        self.taken += 1
        assert self.taken < 100, "the server's thread is held at one client's output queue"
        self.append([])
        return super().popleft()


@pytest.mark.parametrize("here", [True, False])
def test_a_fast_engine_does_not_hold_the_server_at_one_output_queue(
    here: bool, harnesses: Callable[..., Harness]
) -> None:
    harness = harnesses()
    harness.open()
    harness.say(b"a", HELLO)
    session = harness.server._sessions[b"a"]
    if not here:
        harness.say(b"a", Goodbye("enough"))
    harness.server._owners["7"], session.engine_ids["r"] = (session, "r"), "7"
    steps = session.output_queue._steps = Refilled([[EngineOutput("7", (1,))], [EngineOutput("7", (2,))]])
    harness.server._flush(session)
    assert len(steps) == 2
    assert session.num_unread == int(here)


def test_a_slow_client_gets_few_large_messages_and_every_token(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses(FakeConfig(seconds_per_step=0.015))
    harness.open()
    harness.say(b"a", HELLO)
    request = make_request("r", max_tokens=100)
    harness.say(b"a", Submit(request))
    (session,) = harness.server._sessions.values()
    harness.run(lambda: len(session.output_queue) > 10)
    harness.say(b"a", Ack(1))
    last = harness.messages[b"a"][-1]
    assert isinstance(last, Outputs) and len(last.outputs) == 1 and len(last.outputs[0].token_ids) > 10
    harness.say(b"a", Ack(10**9))
    harness.say(b"a", Ack(-5))

    def reads() -> bool:
        harness.say(b"a", Ack(1))
        return any(output.finish_reason for output in harness.outputs(b"a", "r"))

    harness.run(reads)
    tokens = [token for output in harness.outputs(b"a", "r") for token in output.token_ids]
    assert tokens == expected_tokens((1, 2, 3), request.params, FakeConfig())


def steps_of(harness: Harness, identity: bytes) -> list[int]:
    messages = [message for message in harness.messages[identity] if isinstance(message, Outputs)]
    return [stats.step_id for message in messages for stats in message.stats]


def test_only_who_watches_is_shown_the_steps_no_later_than_their_news(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.open()
    for name in (b"a", b"b"):
        harness.say(name, HELLO)
    assert harness.engine._loop.on_step is None, "no client watches, so the engine makes no stats"
    harness.say(b"a", WatchSteps(True))
    for name in (b"a", b"b"):
        harness.say(name, Submit(make_request("r", max_tokens=9)))
    for name in (b"a", b"b"):
        harness.end(name, "r")
    mine, seen = 0, 0
    for message in harness.messages[b"a"]:
        if isinstance(message, Outputs):
            seen += len(message.stats)
            mine += sum(len(output.token_ids) for output in message.outputs)
            assert mine <= seen
    assert steps_of(harness, b"a")[:9] == list(range(9)) and steps_of(harness, b"b") == []
    harness.say(b"a", WatchSteps(False))
    assert harness.engine._loop.on_step is None


def test_who_has_no_request_sees_the_steps_with_the_next_heartbeat(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.say(b"a", HELLO)
    harness.say(b"a", WatchSteps(True))
    harness.open()
    harness.say(b"b", HELLO)
    harness.say(b"b", Submit(make_request("r", max_tokens=9)))
    harness.end(b"b", "r")
    assert steps_of(harness, b"a") == []
    harness.server.tick(1.0)
    assert steps_of(harness, b"a") == list(range(9))


@pytest.mark.parametrize("how", ["goodbye", "hello again"])
def test_no_steps_are_sent_after_the_watching_client_disconnects(how: str, harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"a", WatchSteps(True))
    harness.say(b"a", WatchSteps(True))
    assert harness.engine._loop.on_step is not None
    harness.say(b"a", Goodbye("enough") if how == "goodbye" else HELLO)
    assert harness.engine._loop.on_step is None


def test_a_slow_client_that_watches_misses_steps_but_no_news(
    harnesses: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chairlift.engine.ipc.step_stats_queue.MAX_STEPS", 50)
    harness = harnesses(FakeConfig(seconds_per_step=0.002))
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"a", WatchSteps(True))
    harness.say(b"a", Submit(make_request("r", max_tokens=900)))
    (session,) = harness.server._sessions.values()
    harness.run(lambda: len(session.output_queue) > 120)
    while not any(output.finish_reason for output in harness.outputs(b"a", "r")):
        harness.say(b"a", Ack(1))
        harness.run(lambda: True)
    messages = [message for message in harness.messages[b"a"] if isinstance(message, Outputs)]
    unseen = sum(message.num_dropped_stats for message in messages)
    assert unseen > 0 and len(steps_of(harness, b"a")) + unseen == 900
    assert steps_of(harness, b"a") == sorted(steps_of(harness, b"a"))
    assert len([token for output in harness.outputs(b"a", "r") for token in output.token_ids]) == 900


def test_shutdown_is_sent_to_all_clients(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    for name in (b"a", b"b"):
        harness.say(name, HELLO)
    harness.server.shutdown("time is up")
    assert all(harness.messages[name] == [Goodbye("time is up")] for name in (b"a", b"b"))


def test_who_watches_twice_keeps_its_steps_also_an_empty_list_of_them(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    harness.open()
    harness.say(b"a", HELLO)
    harness.say(b"a", WatchSteps(True))
    (before,) = harness.server._step_queues  # the engine's thread may be about to add to it
    harness.say(b"a", WatchSteps(True))
    (after,) = harness.server._step_queues
    assert not before and after is before


def news_of(harness: Harness) -> list[Outputs]:
    return [message for message in harness.messages.get(b"a", []) if isinstance(message, Outputs)]


def unhurried(harnesses: Callable[..., Harness], pause: float) -> tuple[Harness, FakeClock]:
    """An office whose client has heard of its request p once, and has not heard of q, which came later and is over."""
    clock = FakeClock()
    harness = harnesses(clock=clock)
    harness.server.engine_started(harness.engine, pause)
    harness.say(b"a", HELLO, now=clock.now())
    harness.say(b"a", Submit(make_request("p", max_tokens=4)), now=clock.now())
    harness.run(lambda: bool(news_of(harness)))
    harness.say(b"a", Submit(make_request("q", max_tokens=4)), now=clock.now())
    harness.run(lambda: ended(harness))
    assert len(news_of(harness)) == 1 and not harness.outputs(b"a", "q")
    return harness, clock


def ended(harness: Harness) -> bool:
    """Whether the engine has said all, whatever the client has heard."""
    (session,) = harness.server._sessions.values()
    sent = [output for message in news_of(harness) for output in message.outputs]
    kept = [output for outputs in tuple(session.output_queue._steps) for output in outputs]
    return sum(output.is_final for output in sent + kept) == 2


def test_a_client_that_shares_the_processor_is_left_alone_a_while_and_then_hears_all_at_once(
    harnesses: Callable[..., Harness],
) -> None:
    harness, clock = unhurried(harnesses, 0.03)
    assert harness.server.tick(clock.now()) == pytest.approx(0.03)
    clock.advance(0.029)
    assert harness.server.tick(clock.now()) == pytest.approx(0.001) and len(news_of(harness)) == 1
    clock.advance(0.002)
    harness.server.tick(clock.now())
    assert len(news_of(harness)) == 2
    for name in "pq":
        found = [token for output in harness.outputs(b"a", name) for token in output.token_ids]
        prompt = make_request(name, max_tokens=4)
        assert found == expected_tokens(prompt.prompt_token_ids, prompt.params, FakeConfig())
    assert harness.server.tick(clock.now()) > 0.1, "nothing is left to wait for but the next heartbeat"


def test_no_client_is_left_alone_for_longer_than_the_longest_pause(harnesses: Callable[..., Harness]) -> None:
    harness, clock = unhurried(harnesses, 1e9)
    clock.advance(LONGEST_PAUSE_SECONDS + 0.001)
    harness.server.tick(clock.now())
    assert sum(output.is_final for name in "pq" for output in harness.outputs(b"a", name)) == 2


def test_a_pause_does_not_hurry_a_client_that_has_enough_to_read(harnesses: Callable[..., Harness]) -> None:
    harness, clock = unhurried(harnesses, 0.001)
    (session,) = harness.server._sessions.values()
    session.num_unread = ACK_WINDOW
    clock.advance(1.0)
    before = len(news_of(harness))
    harness.server.tick(clock.now())
    assert len(news_of(harness)) == before
    harness.say(b"a", Ack(1), now=clock.now())
    assert len(news_of(harness)) == before + 1


def test_delayed_outputs_are_sent_before_the_goodbye(harnesses: Callable[..., Harness]) -> None:
    harness, _ = unhurried(harnesses, 1e9)
    harness.server.shutdown("time is up")
    assert harness.outputs(b"a", "q")[-1].finish_reason is FinishReason.LENGTH
    assert harness.messages[b"a"][-1] == Goodbye("time is up")
