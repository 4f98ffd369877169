"""The desk by itself: clients that come, ask, go, fall silent or stop reading, without any socket."""

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


class Office:
    """A desk, its clients' letters and its engine; `run` does what other threads have posted."""

    def __init__(
        self, fake: FakeConfig | None = None, clock: Clock | None = None, **options: Any
    ) -> None:  # fmt: skip
        self.letters: dict[bytes, list[ToClient]] = {}
        self.deaf: set[bytes] = set()
        self.posted: deque[Callable[[], None]] = deque()
        self.config = SchedulerConfig(**options)
        self.desk = EngineServer(self._send, self.posted.append, self.config, pid=77, clock=clock)
        self.engine = InlineClient(EngineLoop(FakeRunner(fake or FakeConfig()), self.config))

    def _send(self, identity: bytes, frame: bytes) -> bool:
        if identity in self.deaf:
            return False
        self.letters.setdefault(identity, []).append(decode_engine_message(frame))
        return True

    def say(self, identity: bytes, message: ToEngine | bytes, now: float = 0.0) -> None:
        self.desk.receive(identity, message if isinstance(message, bytes) else encode(message), now)

    def open(self) -> None:
        self.desk.engine_started(self.engine)

    def run(self, until: Callable[[], bool]) -> None:
        def step() -> bool:
            while self.posted:
                self.posted.popleft()()
            return until()

        wait_until(step)

    def outputs(self, identity: bytes, name: str) -> list[EngineOutput]:
        return [
            output
            for letter in self.letters.get(identity, [])
            if isinstance(letter, Outputs)
            for output in letter.outputs
            if output.request_id == name
        ]

    def end(self, identity: bytes, name: str) -> EngineOutput:
        self.run(lambda: any(output.finish_reason for output in self.outputs(identity, name)))
        (last,) = [output for output in self.outputs(identity, name) if output.finish_reason]
        return last

    def answer(self, identity: bytes, number: int) -> RemoteReply:
        def found() -> list[RemoteReply]:
            letters = self.letters.get(identity, [])
            return [letter for letter in letters if isinstance(letter, RemoteReply) and letter.number == number]

        self.run(lambda: bool(found()))
        (letter,) = found()
        return letter


@pytest.fixture
def offices() -> Iterator[Callable[..., Office]]:
    made: list[Office] = []

    def make(*arguments: Any, **options: Any) -> Office:
        made.append(Office(*arguments, **options))
        return made[-1]

    yield make
    for office in made:
        office.engine.close()


def test_a_client_hears_beats_while_the_engine_starts_and_a_welcome_then(offices: Callable[..., Office]) -> None:
    office = offices()
    office.say(b"a", HELLO)
    office.desk.tick(0.0)
    (beat,) = office.letters[b"a"]
    assert isinstance(beat, EngineHeartbeat) and beat.load.state is ReplicaState.STARTING
    office.open()
    assert office.letters[b"a"][1] == Ready(77, office.engine.info, office.config)
    office.say(b"b", HELLO)
    assert office.letters[b"b"] == [office.letters[b"a"][1]], "who comes later is welcome at once"


def test_beats_come_as_often_as_a_client_wants(offices: Callable[..., Office]) -> None:
    office = offices()
    assert office.desk.tick(0.0) == IDLE_SECONDS
    office.say(b"a", HELLO, now=10.0)
    assert [office.desk.tick(now) for now in (10.0, 10.5, 11.0)] == [1.0, 0.5, 1.0]
    assert len(office.letters[b"a"]) == 2


def test_a_failed_start_is_told_to_everybody(offices: Callable[..., Office]) -> None:
    office = offices()
    office.say(b"a", HELLO)
    office.desk.engine_failed(ModelError("no weights"))
    office.say(b"b", HELLO)
    for name in (b"a", b"b"):
        (letter,) = office.letters[name]
        assert isinstance(letter, StartFailed) and type(letter.error) is ModelError


def test_a_request_runs_under_its_clients_own_id(offices: Callable[..., Office]) -> None:
    office = offices()
    office.open()
    requests = {name: make_request("same", prompt, max_tokens=9) for name, prompt in ((b"a", (1,)), (b"b", (2, 3)))}
    for name, request in requests.items():
        office.say(name, HELLO)
        office.say(name, Submit(request))
    for name, request in requests.items():
        assert office.end(name, "same").finish_reason is FinishReason.LENGTH
        tokens = [token for output in office.outputs(name, "same") for token in output.token_ids]
        assert tokens == expected_tokens(request.prompt_token_ids, request.params, FakeConfig())


def test_the_longest_id_that_is_allowed_works(offices: Callable[..., Office]) -> None:
    office = offices()
    office.open()
    office.say(b"a", HELLO)
    office.say(b"a", Submit(make_request("x" * 256)))
    assert office.end(b"a", "x" * 256).finish_reason is FinishReason.LENGTH


def test_what_the_engine_refuses_comes_back_as_the_last_output(offices: Callable[..., Office]) -> None:
    office = offices(FakeConfig(seconds_per_step=0.01), max_queue_size=1, max_running_requests=1)
    office.say(b"a", HELLO)
    office.say(b"a", Submit(make_request("early")))
    assert type(office.end(b"a", "early").error) is EngineDead
    office.open()
    office.say(b"a", Submit(make_request("bad", (999,))))
    error = office.end(b"a", "bad").error
    assert error is not None and error.code == "token_out_of_range"
    office.say(b"a", Submit(make_request("rides", max_tokens=900)))
    office.run(lambda: bool(office.outputs(b"a", "rides")))
    office.say(b"a", Submit(make_request("rides")))
    twice = office.end(b"a", "rides")
    assert type(twice.error) is DuplicateRequestId and "'rides'" in str(twice.error)
    office.say(b"a", Submit(make_request("waits")))
    office.say(b"a", Submit(make_request("too many")))
    assert type(office.end(b"a", "too many").error) is QueueFull


def test_an_abort_reaches_its_own_request_only(offices: Callable[..., Office]) -> None:
    office = offices(FakeConfig(seconds_per_step=0.01))
    office.open()
    for name in (b"a", b"b"):
        office.say(name, HELLO)
        office.say(name, Submit(make_request("same", max_tokens=900)))
    office.say(b"a", Abort("same"))
    office.say(b"a", Abort("nobody"))
    assert office.end(b"a", "same").finish_reason is FinishReason.ABORT
    assert not any(output.finish_reason for output in office.outputs(b"b", "same"))


@pytest.mark.parametrize("how", ["goodbye", "silence", "deafness", "hello again"])
def test_the_requests_of_a_client_that_is_gone_end(how: str, offices: Callable[..., Office]) -> None:
    office = offices(FakeConfig(seconds_per_step=0.005))
    office.open()
    office.say(b"a", HELLO)
    office.say(b"b", Hello(PROTOCOL, 100.0, 600.0))
    for number in range(3):
        office.say(b"a", Submit(make_request(f"r{number}", max_tokens=1000)))
    office.say(b"b", Submit(make_request("other", max_tokens=1000)))
    office.run(lambda: bool(office.outputs(b"a", "r0")))
    if how == "goodbye":
        office.say(b"a", Goodbye("enough"))
    elif how == "silence":
        for now in range(1, 8):
            office.desk.tick(float(now))
    elif how == "deafness":
        office.deaf.add(b"a")
        office.run(lambda: office.desk.num_guests == 1)
    else:
        office.say(b"a", HELLO)
    office.run(lambda: office.engine.load().running_requests == 1)
    office.deaf.clear()
    assert office.desk.num_guests == (2 if how == "hello again" else 1)
    assert not any(output.finish_reason for output in office.outputs(b"b", "other"))
    if how != "hello again":
        office.say(b"a", ClientHeartbeat())
        assert office.letters[b"a"][-1] == UnknownClient()


def test_a_pulse_breaks_the_silence(offices: Callable[..., Office]) -> None:
    office = offices()
    office.say(b"a", HELLO)
    for now in range(1, 20):
        office.desk.tick(float(now))
        office.say(b"a", ClientHeartbeat(), now=float(now))
    assert office.desk.num_guests == 1


def test_a_desk_that_slept_forgets_nobody(offices: Callable[..., Office]) -> None:
    office = offices()
    office.say(b"a", HELLO)
    office.desk.tick(3600.0)
    assert office.desk.num_guests == 1


def test_a_stranger_is_told_so(offices: Callable[..., Office]) -> None:
    office = offices()
    office.open()
    office.say(b"x", Submit(make_request("r")))
    assert office.letters[b"x"] == [UnknownClient()] and office.desk.num_guests == 0


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
def test_a_client_of_another_protocol_is_refused(hello: Hello, offices: Callable[..., Office]) -> None:
    office = offices()
    office.say(b"x", hello)
    (letter,) = office.letters[b"x"]
    assert isinstance(letter, StartFailed) and type(letter.error) is ConfigError and office.desk.num_guests == 0


def test_what_is_no_message_is_dropped(offices: Callable[..., Office], caplog: pytest.LogCaptureFixture) -> None:
    office = offices()
    office.open()
    office.say(b"a", HELLO)
    office.say(b"a", b"\x80\x04\x95 a pickle")
    office.say(b"b", b"")
    assert office.desk.num_guests == 1 and b"b" not in office.letters
    assert "no message for an engine" in caplog.text


def test_questions_are_answered_without_waiting_for_the_step(offices: Callable[..., Office]) -> None:
    office = offices(FakeConfig(seconds_per_step=0.3), max_running_requests=1)
    office.open()
    for name in (b"a", b"b"):
        office.say(name, HELLO)
    office.say(b"a", Submit(make_request("rides", max_tokens=900)))
    office.run(lambda: bool(office.outputs(b"a", "rides")))
    office.say(b"b", Submit(make_request("waits")))
    for number, name in ((1, b"a"), (2, b"b")):
        office.say(name, RemoteCall(number, "scheduler_state"))
    mine = read_answer("scheduler_state", office.answer(b"a", 1).payload)
    theirs = read_answer("scheduler_state", office.answer(b"b", 2).payload)
    assert (mine["waiting_order"], theirs["waiting_order"]) == (["client 2: waits"], ["waits"])
    assert mine["states"] == {"rides": "decoding", "client 2: waits": "pending"}
    assert theirs["states"] == {"client 1: rides": "decoding", "waits": "pending"}
    assert theirs["wait_reasons"] == {"waits": "running_limit"}


@pytest.mark.parametrize("question", ["close", "submit", "__class__", "info", ""])
def test_only_questions_can_be_asked(question: str, offices: Callable[..., Office]) -> None:
    office = offices()
    office.open()
    office.say(b"a", HELLO)
    office.say(b"a", RemoteCall(1, question))
    assert type(office.answer(b"a", 1).error) is InvalidRequest


def test_a_step_does_not_age_while_the_whole_process_sleeps(offices: Callable[..., Office]) -> None:
    office = offices(FakeConfig(seconds_per_step=0.2))
    office.open()
    office.say(b"a", HELLO)
    office.say(b"a", Submit(make_request("r", max_tokens=900)))
    wait_until(lambda: office.engine.step_began is not None)
    began = office.engine.step_began
    assert began is not None
    office.desk.tick(began)
    office.desk.tick(began + 3600.0)  # Ctrl-Z and, an hour later, fg
    letter = office.letters[b"a"][-1]
    assert isinstance(letter, EngineHeartbeat) and letter.load.step_age_seconds <= 2 * IDLE_SECONDS


def test_beats_carry_counts_and_the_age_of_the_step(offices: Callable[..., Office]) -> None:
    office = offices(FakeConfig(seconds_per_step=0.2))
    office.open()
    office.say(b"a", HELLO)
    office.say(b"a", Submit(make_request("r", max_tokens=900)))
    wait_until(lambda: office.engine.step_began is not None)
    began = office.engine.step_began
    assert began is not None
    for second in range(50):
        office.say(b"a", ClientHeartbeat(), began + second)
        office.desk.tick(began + second)
    letter = office.letters[b"a"][-1]
    assert isinstance(letter, EngineHeartbeat) and letter.load.step_age_seconds == pytest.approx(49.0)
    now = [began + 50.0]

    def rides() -> bool:
        now[0] += 1.0
        office.say(b"a", ClientHeartbeat(), now[0])
        office.desk.tick(now[0])
        letter = office.letters[b"a"][-1]
        return isinstance(letter, EngineHeartbeat) and letter.load.running_requests == 1

    office.run(rides)


def test_beats_carry_the_age_of_a_warm_up(offices: Callable[..., Office], monkeypatch: pytest.MonkeyPatch) -> None:
    office, release = offices(), threading.Event()
    monkeypatch.setattr(office.engine._loop._runner, "warmup", lambda: release.wait(PATIENCE))
    office.open()
    office.say(b"a", HELLO)
    warming = threading.Thread(target=office.engine.warmup)
    warming.start()
    wait_until(lambda: office.engine.warmup_began is not None)
    began = office.engine.warmup_began
    assert began is not None and office.engine.step_began is None
    for second in range(50):
        office.say(b"a", ClientHeartbeat(), began + second)
        office.desk.tick(began + second)
    letter = office.letters[b"a"][-1]
    assert isinstance(letter, EngineHeartbeat) and (letter.warmup_age, letter.load.step_age_seconds) == (
        pytest.approx(49.0),
        0.0,
    )
    release.set()
    warming.join(PATIENCE)
    office.desk.tick(began + 50.0)
    letter = office.letters[b"a"][-1]
    assert isinstance(letter, EngineHeartbeat) and letter.warmup_age == 0.0


def test_an_idle_desk_posts_nothing(offices: Callable[..., Office]) -> None:
    """A heartbeat asks for the next one's counts, once; the answer asks for nothing."""
    office = offices()
    office.open()
    office.say(b"a", HELLO)
    office.desk.tick(0.0)
    wait_until(lambda: len(office.posted) == 1)
    office.posted.popleft()()
    assert office.desk.tick(0.1) > 0.5
    office.engine.load()
    assert not office.posted


def test_a_client_that_acknowledges_nothing_gets_a_window_and_is_dropped_when_too_much_waits(
    offices: Callable[..., Office], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chairlift.engine.ipc.engine_server.MAX_BACKLOG", 100)
    office = offices(FakeConfig(seconds_per_step=0.015))
    office.open()
    office.say(b"a", HELLO)
    for number in range(4):
        office.say(b"a", Submit(make_request(f"r{number}", max_tokens=900)))
    (guest,) = office.desk._guests.values()

    def news() -> list[Outputs]:
        return [letter for letter in office.letters[b"a"] if isinstance(letter, Outputs)]

    office.run(lambda: len(guest.backlog) > 100)
    assert len(news()) == ACK_WINDOW
    office.desk.tick(1.0)
    assert office.desk.num_guests == 0
    office.run(lambda: not guest.backlog and not guest.ids and office.engine.load().running_requests == 0)
    assert len(news()) == ACK_WINDOW and not office.desk._owners


def test_an_engine_that_ends_waits_for_no_client(
    offices: Callable[..., Office], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []
    office = offices(FakeConfig(seconds_per_step=0.005))
    monkeypatch.setattr(OutputQueue, "throttle", lambda self, count: waits.append(office.engine.fatal_error is None))
    office.open()
    office.say(b"a", HELLO)
    for number in range(4):
        office.say(b"a", Submit(make_request(f"r{number}", max_tokens=900)))
    (guest,) = office.desk._guests.values()
    office.run(lambda: len(guest.backlog) > 10)
    assert waits
    office.engine.close()
    assert all(waits) and sum(output.finish_reason is not None for output in guest.backlog.take()) == 4


def test_what_a_client_was_not_told_that_is_gone_is_let_go_at_little_cost(
    offices: Callable[..., Office], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast engine's backlog of a second, made ready to be sent, would keep the desk silent for as long."""
    renamed: list[str] = []
    office = offices(FakeConfig(seconds_per_step=0.005))
    office.open()
    office.say(b"a", HELLO)
    office.say(b"a", Submit(make_request("r", max_tokens=900)))
    guest = office.desk._guests[b"a"]
    office.run(lambda: len(guest.backlog) > 20)
    rename = office.desk._with_client_id
    monkeypatch.setattr(
        office.desk, "_with_client_id", lambda *given: renamed.append(given[1].request_id) or rename(*given)
    )
    office.say(b"a", Goodbye("enough"))
    office.run(lambda: not guest.backlog and not guest.ids)
    assert len(renamed) == 1


class Refilled(deque[list[EngineOutput]]):
    """A backlog to which a fast engine adds a step whenever one is taken."""

    taken = 0

    def popleft(self) -> list[EngineOutput]:
        self.taken += 1
        assert self.taken < 100, "the desk's thread is held at one client's backlog"
        self.append([])
        return super().popleft()


@pytest.mark.parametrize("here", [True, False])
def test_a_fast_engine_does_not_hold_the_desk_at_one_backlog(here: bool, offices: Callable[..., Office]) -> None:
    office = offices()
    office.open()
    office.say(b"a", HELLO)
    guest = office.desk._guests[b"a"]
    if not here:
        office.say(b"a", Goodbye("enough"))
    office.desk._owners["7"], guest.ids["r"] = (guest, "r"), "7"
    steps = guest.backlog._steps = Refilled([[EngineOutput("7", (1,))], [EngineOutput("7", (2,))]])
    office.desk._flush(guest)
    assert len(steps) == 2
    assert guest.unread == int(here)


def test_a_slow_client_gets_few_large_messages_and_every_token(offices: Callable[..., Office]) -> None:
    office = offices(FakeConfig(seconds_per_step=0.015))
    office.open()
    office.say(b"a", HELLO)
    request = make_request("r", max_tokens=100)
    office.say(b"a", Submit(request))
    (guest,) = office.desk._guests.values()
    office.run(lambda: len(guest.backlog) > 10)
    office.say(b"a", Ack(1))
    last = office.letters[b"a"][-1]
    assert isinstance(last, Outputs) and len(last.outputs) == 1 and len(last.outputs[0].token_ids) > 10
    office.say(b"a", Ack(10**9))
    office.say(b"a", Ack(-5))

    def reads() -> bool:
        office.say(b"a", Ack(1))
        return any(output.finish_reason for output in office.outputs(b"a", "r"))

    office.run(reads)
    tokens = [token for output in office.outputs(b"a", "r") for token in output.token_ids]
    assert tokens == expected_tokens((1, 2, 3), request.params, FakeConfig())


def steps_of(office: Office, identity: bytes) -> list[int]:
    letters = [letter for letter in office.letters[identity] if isinstance(letter, Outputs)]
    return [stats.step_id for letter in letters for stats in letter.stats]


def test_only_who_watches_is_shown_the_steps_no_later_than_their_news(offices: Callable[..., Office]) -> None:
    office = offices()
    office.open()
    for name in (b"a", b"b"):
        office.say(name, HELLO)
    assert office.engine._loop.on_step is None, "nobody watches, nothing is spent"
    office.say(b"a", WatchSteps(True))
    for name in (b"a", b"b"):
        office.say(name, Submit(make_request("r", max_tokens=9)))
    for name in (b"a", b"b"):
        office.end(name, "r")
    mine, seen = 0, 0
    for letter in office.letters[b"a"]:
        if isinstance(letter, Outputs):
            seen += len(letter.stats)
            mine += sum(len(output.token_ids) for output in letter.outputs)
            assert mine <= seen
    assert steps_of(office, b"a")[:9] == list(range(9)) and steps_of(office, b"b") == []
    office.say(b"a", WatchSteps(False))
    assert office.engine._loop.on_step is None


def test_who_has_no_request_sees_the_steps_with_the_next_heartbeat(offices: Callable[..., Office]) -> None:
    office = offices()
    office.say(b"a", HELLO)
    office.say(b"a", WatchSteps(True))
    office.open()
    office.say(b"b", HELLO)
    office.say(b"b", Submit(make_request("r", max_tokens=9)))
    office.end(b"b", "r")
    assert steps_of(office, b"a") == []
    office.desk.tick(1.0)
    assert steps_of(office, b"a") == list(range(9))


@pytest.mark.parametrize("how", ["goodbye", "hello again"])
def test_nobody_is_shown_steps_when_who_watched_has_gone(how: str, offices: Callable[..., Office]) -> None:
    office = offices()
    office.open()
    office.say(b"a", HELLO)
    office.say(b"a", WatchSteps(True))
    office.say(b"a", WatchSteps(True))
    assert office.engine._loop.on_step is not None
    office.say(b"a", Goodbye("enough") if how == "goodbye" else HELLO)
    assert office.engine._loop.on_step is None


def test_a_slow_client_that_watches_misses_steps_but_no_news(
    offices: Callable[..., Office], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chairlift.engine.ipc.step_stats_queue.MAX_STEPS", 50)
    office = offices(FakeConfig(seconds_per_step=0.002))
    office.open()
    office.say(b"a", HELLO)
    office.say(b"a", WatchSteps(True))
    office.say(b"a", Submit(make_request("r", max_tokens=900)))
    (guest,) = office.desk._guests.values()
    office.run(lambda: len(guest.backlog) > 120)
    while not any(output.finish_reason for output in office.outputs(b"a", "r")):
        office.say(b"a", Ack(1))
        office.run(lambda: True)
    letters = [letter for letter in office.letters[b"a"] if isinstance(letter, Outputs)]
    unseen = sum(letter.num_dropped_stats for letter in letters)
    assert unseen > 0 and len(steps_of(office, b"a")) + unseen == 900
    assert steps_of(office, b"a") == sorted(steps_of(office, b"a"))
    assert len([token for output in office.outputs(b"a", "r") for token in output.token_ids]) == 900


def test_leaving_is_told_to_everybody(offices: Callable[..., Office]) -> None:
    office = offices()
    for name in (b"a", b"b"):
        office.say(name, HELLO)
    office.desk.shutdown("time is up")
    assert all(office.letters[name] == [Goodbye("time is up")] for name in (b"a", b"b"))


def test_who_watches_twice_keeps_its_steps_also_an_empty_list_of_them(offices: Callable[..., Office]) -> None:
    office = offices()
    office.open()
    office.say(b"a", HELLO)
    office.say(b"a", WatchSteps(True))
    (before,) = office.desk._watched_by  # the engine's thread may be about to add to it
    office.say(b"a", WatchSteps(True))
    (after,) = office.desk._watched_by
    assert not before and after is before


def news_of(office: Office) -> list[Outputs]:
    return [letter for letter in office.letters.get(b"a", []) if isinstance(letter, Outputs)]


def unhurried(offices: Callable[..., Office], pause: float) -> tuple[Office, FakeClock]:
    """An office whose client has heard of its request p once, and has not heard of q, which came later and is over."""
    clock = FakeClock()
    office = offices(clock=clock)
    office.desk.engine_started(office.engine, pause)
    office.say(b"a", HELLO, now=clock.now())
    office.say(b"a", Submit(make_request("p", max_tokens=4)), now=clock.now())
    office.run(lambda: bool(news_of(office)))
    office.say(b"a", Submit(make_request("q", max_tokens=4)), now=clock.now())
    office.run(lambda: ended(office))
    assert len(news_of(office)) == 1 and not office.outputs(b"a", "q")
    return office, clock


def ended(office: Office) -> bool:
    """Whether the engine has said all, whatever the client has heard."""
    (guest,) = office.desk._guests.values()
    told = [output for letter in news_of(office) for output in letter.outputs]
    kept = [output for outputs in tuple(guest.backlog._steps) for output in outputs]
    return sum(output.is_final for output in told + kept) == 2


def test_a_client_that_shares_the_processor_is_left_alone_a_while_and_then_hears_all_at_once(
    offices: Callable[..., Office],
) -> None:
    office, clock = unhurried(offices, 0.03)
    assert office.desk.tick(clock.now()) == pytest.approx(0.03)
    clock.advance(0.029)
    assert office.desk.tick(clock.now()) == pytest.approx(0.001) and len(news_of(office)) == 1
    clock.advance(0.002)
    office.desk.tick(clock.now())
    assert len(news_of(office)) == 2
    for name in "pq":
        found = [token for output in office.outputs(b"a", name) for token in output.token_ids]
        prompt = make_request(name, max_tokens=4)
        assert found == expected_tokens(prompt.prompt_token_ids, prompt.params, FakeConfig())
    assert office.desk.tick(clock.now()) > 0.1, "nothing is left to wait for but the next heartbeat"


def test_no_client_is_left_alone_for_longer_than_the_longest_pause(offices: Callable[..., Office]) -> None:
    office, clock = unhurried(offices, 1e9)
    clock.advance(LONGEST_PAUSE_SECONDS + 0.001)
    office.desk.tick(clock.now())
    assert sum(output.is_final for name in "pq" for output in office.outputs(b"a", name)) == 2


def test_a_pause_does_not_hurry_a_client_that_has_enough_to_read(offices: Callable[..., Office]) -> None:
    office, clock = unhurried(offices, 0.001)
    (guest,) = office.desk._guests.values()
    guest.unread = ACK_WINDOW
    clock.advance(1.0)
    before = len(news_of(office))
    office.desk.tick(clock.now())
    assert len(news_of(office)) == before
    office.say(b"a", Ack(1), now=clock.now())
    assert len(news_of(office)) == before + 1


def test_what_was_kept_back_is_told_before_the_engine_is_gone(offices: Callable[..., Office]) -> None:
    office, _ = unhurried(offices, 1e9)
    office.desk.shutdown("time is up")
    assert office.outputs(b"a", "q")[-1].finish_reason is FinishReason.LENGTH
    assert office.letters[b"a"][-1] == Goodbye("time is up")
