"""EngineServer without a socket: clients connect, call, disconnect, send nothing for too long or stop reading."""

import threading
from collections.abc import Callable

import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ConfigError, DuplicateRequestId, EngineDead, InvalidRequest, ModelError, QueueFull
from chairlift.core.load_report import ReplicaState
from chairlift.engine.ipc.engine_server import IDLE_SECONDS
from chairlift.engine.ipc.messages import (
    PROTOCOL,
    Abort,
    ClientHeartbeat,
    EngineHeartbeat,
    Goodbye,
    Hello,
    Ready,
    RemoteCall,
    StartFailed,
    Submit,
    UnknownClient,
    decode_reply,
)
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens
from support_engine_server import HELLO, ServerHarness
from support_process import TIMEOUT_SECONDS, make_request, wait_until


def test_a_client_gets_heartbeats_while_the_engine_starts_and_then_ready(
    make_harness: Callable[..., ServerHarness],
) -> None:
    harness = make_harness()
    harness.send(b"a", HELLO)
    harness.server.tick(0.0)
    (heartbeat,) = harness.messages[b"a"]
    assert isinstance(heartbeat, EngineHeartbeat) and heartbeat.load.state is ReplicaState.STARTING
    harness.start_engine()
    assert harness.messages[b"a"][1] == Ready(77, harness.engine.info, harness.config)
    harness.send(b"b", HELLO)
    assert harness.messages[b"b"] == [harness.messages[b"a"][1]], "a client that connects later is ready at once"


def test_heartbeats_come_at_the_interval_that_the_client_names(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    assert harness.server.tick(0.0) == IDLE_SECONDS
    harness.send(b"a", HELLO, now=10.0)
    assert [harness.server.tick(now) for now in (10.0, 10.5, 11.0)] == [1.0, 0.5, 1.0]
    assert len(harness.messages[b"a"]) == 2


def test_a_failed_start_is_sent_to_all_clients(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    harness.send(b"a", HELLO)
    harness.server.engine_failed(ModelError("no weights"))
    harness.send(b"b", HELLO)
    for name in (b"a", b"b"):
        (message,) = harness.messages[name]
        assert isinstance(message, StartFailed) and type(message.error) is ModelError


def test_a_request_runs_under_its_clients_own_id(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    harness.start_engine()
    requests = {name: make_request("same", prompt, max_tokens=9) for name, prompt in ((b"a", (1,)), (b"b", (2, 3)))}
    for name, request in requests.items():
        harness.send(name, HELLO)
        harness.send(name, Submit(request))
    for name, request in requests.items():
        assert harness.wait_for_end(name, "same").finish_reason is FinishReason.LENGTH
        tokens = [token for output in harness.outputs(name, "same") for token in output.token_ids]
        assert tokens == expected_tokens(request.prompt_token_ids, request.params, FakeConfig())


def test_the_longest_id_that_is_allowed_works(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"a", Submit(make_request("x" * 256)))
    assert harness.wait_for_end(b"a", "x" * 256).finish_reason is FinishReason.LENGTH


def test_what_the_engine_refuses_comes_back_as_the_last_output(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness(FakeConfig(seconds_per_step=0.01), max_queue_size=1, max_running_requests=1)
    harness.send(b"a", HELLO)
    harness.send(b"a", Submit(make_request("early")))
    assert type(harness.wait_for_end(b"a", "early").error) is EngineDead
    harness.start_engine()
    harness.send(b"a", Submit(make_request("bad", (999,))))
    error = harness.wait_for_end(b"a", "bad").error
    assert error is not None and error.code == "token_out_of_range"
    harness.send(b"a", Submit(make_request("running", max_tokens=900)))
    harness.run_until(lambda: bool(harness.outputs(b"a", "running")))
    harness.send(b"a", Submit(make_request("running")))
    twice = harness.wait_for_end(b"a", "running")
    assert type(twice.error) is DuplicateRequestId and "'running'" in str(twice.error)
    harness.send(b"a", Submit(make_request("waits")))
    harness.send(b"a", Submit(make_request("too many")))
    assert type(harness.wait_for_end(b"a", "too many").error) is QueueFull


def test_an_abort_reaches_its_own_request_only(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness(FakeConfig(seconds_per_step=0.01))
    harness.start_engine()
    for name in (b"a", b"b"):
        harness.send(name, HELLO)
        harness.send(name, Submit(make_request("same", max_tokens=900)))
    harness.send(b"a", Abort("same"))
    harness.send(b"a", Abort("unknown"))
    assert harness.wait_for_end(b"a", "same").finish_reason is FinishReason.ABORT
    assert not any(output.finish_reason for output in harness.outputs(b"b", "same"))


@pytest.mark.parametrize("way", ["goodbye", "silence", "no reading", "hello again"])
def test_the_requests_of_a_client_that_is_gone_end(way: str, make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness(FakeConfig(seconds_per_step=0.005))
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"b", Hello(PROTOCOL, 100.0, 600.0))
    for number in range(3):
        harness.send(b"a", Submit(make_request(f"r{number}", max_tokens=1000)))
    harness.send(b"b", Submit(make_request("other", max_tokens=1000)))
    harness.run_until(lambda: bool(harness.outputs(b"a", "r0")))
    if way == "goodbye":
        harness.send(b"a", Goodbye("enough"))
    elif way == "silence":
        for now in range(1, 8):
            harness.server.tick(float(now))
    elif way == "no reading":
        harness.not_reading.add(b"a")
        harness.run_until(lambda: harness.server.num_clients == 1)
    else:
        harness.send(b"a", HELLO)
    harness.run_until(lambda: harness.engine.load().running_requests == 1)
    harness.not_reading.clear()
    assert harness.server.num_clients == (2 if way == "hello again" else 1)
    assert not any(output.finish_reason for output in harness.outputs(b"b", "other"))
    if way != "hello again":
        harness.send(b"a", ClientHeartbeat())
        assert harness.messages[b"a"][-1] == UnknownClient()


def test_a_heartbeat_ends_the_silence(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    harness.send(b"a", HELLO)
    for now in range(1, 20):
        harness.server.tick(float(now))
        harness.send(b"a", ClientHeartbeat(), now=float(now))
    assert harness.server.num_clients == 1


def test_a_server_that_slept_keeps_its_clients(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    harness.send(b"a", HELLO)
    harness.server.tick(3600.0)
    assert harness.server.num_clients == 1


def test_an_unknown_client_is_notified(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    harness.start_engine()
    harness.send(b"x", Submit(make_request("r")))
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
def test_a_client_of_another_protocol_is_refused(hello: Hello, make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    harness.send(b"x", hello)
    (message,) = harness.messages[b"x"]
    assert isinstance(message, StartFailed) and type(message.error) is ConfigError and harness.server.num_clients == 0


def test_what_is_no_message_is_dropped(
    make_harness: Callable[..., ServerHarness], caplog: pytest.LogCaptureFixture
) -> None:
    harness = make_harness()
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"a", b"\x80\x04\x95 a pickle")
    harness.send(b"b", b"")
    assert harness.server.num_clients == 1 and b"b" not in harness.messages
    assert "to the engine cannot be decoded" in caplog.text


def test_questions_are_answered_without_waiting_for_the_step(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness(FakeConfig(seconds_per_step=0.3), max_running_requests=1)
    harness.start_engine()
    for name in (b"a", b"b"):
        harness.send(name, HELLO)
    harness.send(b"a", Submit(make_request("running", max_tokens=900)))
    harness.run_until(lambda: bool(harness.outputs(b"a", "running")))
    harness.send(b"b", Submit(make_request("waits")))
    for number, name in ((1, b"a"), (2, b"b")):
        harness.send(name, RemoteCall(number, "scheduler_state"))
    state_of_a = decode_reply("scheduler_state", harness.wait_for_reply(b"a", 1).payload)
    state_of_b = decode_reply("scheduler_state", harness.wait_for_reply(b"b", 2).payload)
    assert (state_of_a["waiting_order"], state_of_b["waiting_order"]) == (["client 2: waits"], ["waits"])
    assert state_of_a["states"] == {"running": "decoding", "client 2: waits": "pending"}
    assert state_of_b["states"] == {"client 1: running": "decoding", "waits": "pending"}
    assert state_of_b["wait_reasons"] == {"waits": "running_limit"}
    assert [each["request_id"] for each in state_of_b["sequences"]] == ["client 1: running", "waits"]
    harness.send(b"b", RemoteCall(3, "batch_snapshot"))
    rows = decode_reply("batch_snapshot", harness.wait_for_reply(b"b", 3).payload).rows
    assert [(row.request_id, row.state) for row in rows] == [("client 1: running", "decode"), ("waits", "waiting")]


@pytest.mark.parametrize("method", ["close", "submit", "__class__", "info", ""])
def test_only_remote_methods_can_be_called(method: str, make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"a", RemoteCall(1, method))
    assert type(harness.wait_for_reply(b"a", 1).error) is InvalidRequest


def test_a_step_does_not_age_while_the_whole_process_sleeps(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness(FakeConfig(seconds_per_step=0.2))
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"a", Submit(make_request("r", max_tokens=900)))
    wait_until(lambda: harness.engine.step_started_at is not None)
    started_at = harness.engine.step_started_at
    assert started_at is not None
    harness.server.tick(started_at)
    harness.server.tick(started_at + 3600.0)  # Ctrl-Z and, an hour later, fg
    message = harness.messages[b"a"][-1]
    assert isinstance(message, EngineHeartbeat) and message.load.step_age_seconds <= 2 * IDLE_SECONDS


def test_beats_carry_counts_and_the_age_of_the_step(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness(FakeConfig(seconds_per_step=0.2))
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"a", Submit(make_request("r", max_tokens=900)))
    wait_until(lambda: harness.engine.step_started_at is not None)
    started_at = harness.engine.step_started_at
    assert started_at is not None
    for second in range(50):
        harness.send(b"a", ClientHeartbeat(), started_at + second)
        harness.server.tick(started_at + second)
    message = harness.messages[b"a"][-1]
    assert isinstance(message, EngineHeartbeat) and message.load.step_age_seconds == pytest.approx(49.0)
    now = [started_at + 50.0]

    def is_running() -> bool:
        now[0] += 1.0
        harness.send(b"a", ClientHeartbeat(), now[0])
        harness.server.tick(now[0])
        message = harness.messages[b"a"][-1]
        return isinstance(message, EngineHeartbeat) and message.load.running_requests == 1

    harness.run_until(is_running)


def test_beats_carry_the_age_of_a_warm_up(
    make_harness: Callable[..., ServerHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, release = make_harness(), threading.Event()
    monkeypatch.setattr(harness.engine.loop._runner, "warmup", lambda: release.wait(TIMEOUT_SECONDS))
    harness.start_engine()
    harness.send(b"a", HELLO)
    warming = threading.Thread(target=harness.engine.warmup)
    warming.start()
    wait_until(lambda: harness.engine.warmup_started_at is not None)
    started_at = harness.engine.warmup_started_at
    assert started_at is not None and harness.engine.step_started_at is None
    for second in range(50):
        harness.send(b"a", ClientHeartbeat(), started_at + second)
        harness.server.tick(started_at + second)
    message = harness.messages[b"a"][-1]
    assert isinstance(message, EngineHeartbeat) and (message.warmup_age, message.load.step_age_seconds) == (
        pytest.approx(49.0),
        0.0,
    )
    release.set()
    warming.join(TIMEOUT_SECONDS)
    harness.server.tick(started_at + 50.0)
    message = harness.messages[b"a"][-1]
    assert isinstance(message, EngineHeartbeat) and message.warmup_age == 0.0


def test_an_idle_server_posts_nothing(make_harness: Callable[..., ServerHarness]) -> None:
    """A heartbeat starts one load call for the next heartbeat; its result starts none."""
    harness = make_harness()
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.server.tick(0.0)
    wait_until(lambda: len(harness.posted) == 1)
    harness.posted.popleft()()
    assert harness.server.tick(0.1) > 0.5
    harness.engine.load()
    assert not harness.posted


def test_shutdown_is_sent_to_all_clients(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness()
    for name in (b"a", b"b"):
        harness.send(name, HELLO)
    harness.server.shutdown("time is up")
    assert all(harness.messages[name] == [Goodbye("time is up")] for name in (b"a", b"b"))
