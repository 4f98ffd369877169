"""EngineServer: outputs and step statistics for fast, slow and disconnected clients."""

from collections import deque
from collections.abc import Callable

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.engine.ipc.engine_server import MAX_PAUSE_SECONDS
from chairlift.engine.ipc.messages import ACK_WINDOW, Ack, Goodbye, Outputs, Submit, WatchSteps
from chairlift.engine.ipc.output_queue import OutputQueue
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens
from support_engine_server import HELLO, ServerHarness
from support_process import make_request


def test_a_client_that_acknowledges_nothing_gets_a_window_and_is_dropped_when_too_much_waits(
    make_harness: Callable[..., ServerHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chairlift.engine.ipc.engine_server.MAX_BACKLOG", 100)
    harness = make_harness(FakeConfig(seconds_per_step=0.015))
    harness.start_engine()
    harness.send(b"a", HELLO)
    for number in range(4):
        harness.send(b"a", Submit(make_request(f"r{number}", max_tokens=900)))
    (session,) = harness.server._sessions.values()

    def outputs_messages() -> list[Outputs]:
        return [message for message in harness.messages[b"a"] if isinstance(message, Outputs)]

    harness.run_until(lambda: len(session.output_queue) > 100)
    assert len(outputs_messages()) == ACK_WINDOW
    harness.server.tick(1.0)
    assert harness.server.num_clients == 0
    harness.run_until(
        lambda: not session.output_queue and not session.engine_ids and harness.engine.load().running_requests == 0
    )
    assert len(outputs_messages()) == ACK_WINDOW and not harness.server._owners


def test_an_engine_that_ends_waits_for_no_client(
    make_harness: Callable[..., ServerHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []
    harness = make_harness(FakeConfig(seconds_per_step=0.005))
    monkeypatch.setattr(OutputQueue, "throttle", lambda self, count: waits.append(harness.engine.fatal_error is None))
    harness.start_engine()
    harness.send(b"a", HELLO)
    for number in range(4):
        harness.send(b"a", Submit(make_request(f"r{number}", max_tokens=900)))
    (session,) = harness.server._sessions.values()
    harness.run_until(lambda: len(session.output_queue) > 10)
    assert waits
    harness.engine.close()
    assert all(waits) and sum(output.finish_reason is not None for output in session.output_queue.take()) == 4


def test_unsent_outputs_of_a_disconnected_client_are_dropped_at_little_cost(
    make_harness: Callable[..., ServerHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To flush all outputs that a fast engine makes in a second would block the server for as long."""
    renamed: list[str] = []
    harness = make_harness(FakeConfig(seconds_per_step=0.005))
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"a", Submit(make_request("r", max_tokens=900)))
    session = harness.server._sessions[b"a"]
    harness.run_until(lambda: len(session.output_queue) > 20)
    rename = harness.server._with_client_id
    monkeypatch.setattr(
        harness.server,
        "_with_client_id",
        lambda *arguments: renamed.append(arguments[1].request_id) or rename(*arguments),
    )
    harness.send(b"a", Goodbye("enough"))
    harness.run_until(lambda: not session.output_queue and not session.engine_ids)
    assert len(renamed) == 1


class RefillingDeque(deque[list[EngineOutput]]):
    """The steps of an output queue to which a fast engine adds one whenever one is taken."""

    taken = 0

    def popleft(self) -> list[EngineOutput]:
        self.taken += 1
        assert self.taken < 100, "the server thread does not leave this output queue"
        self.append([])
        return super().popleft()


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_fast_engine_does_not_hold_the_server_at_one_output_queue(
    is_connected: bool, make_harness: Callable[..., ServerHarness]
) -> None:
    harness = make_harness()
    harness.start_engine()
    harness.send(b"a", HELLO)
    session = harness.server._sessions[b"a"]
    if not is_connected:
        harness.send(b"a", Goodbye("enough"))
    harness.server._owners["7"], session.engine_ids["r"] = (session, "r"), "7"
    steps = session.output_queue._steps = RefillingDeque([[EngineOutput("7", (1,))], [EngineOutput("7", (2,))]])
    harness.server._flush(session)
    assert len(steps) == 2
    assert session.num_unread == int(is_connected)


def test_a_slow_client_gets_few_large_messages_and_every_token(make_harness: Callable[..., ServerHarness]) -> None:
    harness = make_harness(FakeConfig(seconds_per_step=0.015))
    harness.start_engine()
    harness.send(b"a", HELLO)
    request = make_request("r", max_tokens=100)
    harness.send(b"a", Submit(request))
    (session,) = harness.server._sessions.values()
    harness.run_until(lambda: len(session.output_queue) > 10)
    harness.send(b"a", Ack(1))
    last = harness.messages[b"a"][-1]
    assert isinstance(last, Outputs) and len(last.outputs) == 1 and len(last.outputs[0].token_ids) > 10
    harness.send(b"a", Ack(10**9))
    harness.send(b"a", Ack(-5))

    def acknowledge() -> bool:
        harness.send(b"a", Ack(1))
        return any(output.finish_reason for output in harness.outputs(b"a", "r"))

    harness.run_until(acknowledge)
    tokens = [token for output in harness.outputs(b"a", "r") for token in output.token_ids]
    assert tokens == expected_tokens((1, 2, 3), request.params, FakeConfig())


def steps_of(harness: ServerHarness, identity: bytes) -> list[int]:
    messages = [message for message in harness.messages[identity] if isinstance(message, Outputs)]
    return [stats.step_id for message in messages for stats in message.stats]


def test_only_a_watching_client_gets_the_steps_no_later_than_their_outputs(
    make_harness: Callable[..., ServerHarness],
) -> None:
    harness = make_harness()
    harness.start_engine()
    for name in (b"a", b"b"):
        harness.send(name, HELLO)
    assert harness.engine.loop.on_step is None, "no client watches, so the engine makes no stats"
    harness.send(b"a", WatchSteps(True))
    for name in (b"a", b"b"):
        harness.send(name, Submit(make_request("r", max_tokens=9)))
    for name in (b"a", b"b"):
        harness.wait_for_end(name, "r")
    num_tokens, num_steps = 0, 0
    for message in harness.messages[b"a"]:
        if isinstance(message, Outputs):
            num_steps += len(message.stats)
            num_tokens += sum(len(output.token_ids) for output in message.outputs)
            assert num_tokens <= num_steps
    assert steps_of(harness, b"a")[:9] == list(range(9)) and steps_of(harness, b"b") == []
    harness.send(b"a", WatchSteps(False))
    assert harness.engine.loop.on_step is None


def test_a_client_without_a_request_gets_the_steps_with_the_next_heartbeat(
    make_harness: Callable[..., ServerHarness],
) -> None:
    harness = make_harness()
    harness.send(b"a", HELLO)
    harness.send(b"a", WatchSteps(True))
    harness.start_engine()
    harness.send(b"b", HELLO)
    harness.send(b"b", Submit(make_request("r", max_tokens=9)))
    harness.wait_for_end(b"b", "r")
    assert steps_of(harness, b"a") == []
    harness.server.tick(1.0)
    assert steps_of(harness, b"a") == list(range(9))


@pytest.mark.parametrize("way", ["goodbye", "hello again"])
def test_no_steps_are_sent_after_the_watching_client_disconnects(
    way: str, make_harness: Callable[..., ServerHarness]
) -> None:
    harness = make_harness()
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"a", WatchSteps(True))
    harness.send(b"a", WatchSteps(True))
    assert harness.engine.loop.on_step is not None
    harness.send(b"a", Goodbye("enough") if way == "goodbye" else HELLO)
    assert harness.engine.loop.on_step is None


@pytest.mark.full
def test_a_slow_client_that_watches_misses_steps_but_no_outputs(
    make_harness: Callable[..., ServerHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chairlift.engine.ipc.step_stats_queue.MAX_STEPS", 50)
    harness = make_harness(FakeConfig(seconds_per_step=0.002))
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"a", WatchSteps(True))
    harness.send(b"a", Submit(make_request("r", max_tokens=900)))
    (session,) = harness.server._sessions.values()
    harness.run_until(lambda: len(session.output_queue) > 120)
    while not any(output.finish_reason for output in harness.outputs(b"a", "r")):
        harness.send(b"a", Ack(1))
        harness.run_until(lambda: True)
    messages = [message for message in harness.messages[b"a"] if isinstance(message, Outputs)]
    num_dropped = sum(message.num_dropped_stats for message in messages)
    assert num_dropped > 0 and len(steps_of(harness, b"a")) + num_dropped == 900
    assert steps_of(harness, b"a") == sorted(steps_of(harness, b"a"))
    assert len([token for output in harness.outputs(b"a", "r") for token in output.token_ids]) == 900


def test_a_client_that_watches_twice_keeps_its_steps_also_an_empty_queue_of_them(
    make_harness: Callable[..., ServerHarness],
) -> None:
    harness = make_harness()
    harness.start_engine()
    harness.send(b"a", HELLO)
    harness.send(b"a", WatchSteps(True))
    (before,) = harness.server._step_queues  # the engine thread may be about to add to it
    harness.send(b"a", WatchSteps(True))
    (after,) = harness.server._step_queues
    assert not before and after is before


def outputs_sent(harness: ServerHarness) -> list[Outputs]:
    return [message for message in harness.messages.get(b"a", []) if isinstance(message, Outputs)]


def make_delayed_outputs(make_harness: Callable[..., ServerHarness], pause: float) -> tuple[ServerHarness, FakeClock]:
    """Make a server with delayed outputs: the client got a message for request p and none for q, which has ended."""
    clock = FakeClock()
    harness = make_harness(clock=clock)
    harness.server.engine_started(harness.engine, pause)
    harness.send(b"a", HELLO, now=clock.now())
    harness.send(b"a", Submit(make_request("p", max_tokens=4)), now=clock.now())
    harness.run_until(lambda: bool(outputs_sent(harness)))
    harness.send(b"a", Submit(make_request("q", max_tokens=4)), now=clock.now())
    harness.run_until(lambda: all_have_ended(harness))
    assert len(outputs_sent(harness)) == 1 and not harness.outputs(b"a", "q")
    return harness, clock


def all_have_ended(harness: ServerHarness) -> bool:
    """Whether both requests have ended in the engine, also if the client does not know yet."""
    (session,) = harness.server._sessions.values()
    sent = [output for message in outputs_sent(harness) for output in message.outputs]
    kept = [output for outputs in tuple(session.output_queue._steps) for output in outputs]
    return sum(output.is_final for output in sent + kept) == 2


def test_a_client_that_shares_the_processor_gets_all_outputs_at_once_after_a_pause(
    make_harness: Callable[..., ServerHarness],
) -> None:
    harness, clock = make_delayed_outputs(make_harness, 0.03)
    assert harness.server.tick(clock.now()) == pytest.approx(0.03)
    clock.advance(0.029)
    assert harness.server.tick(clock.now()) == pytest.approx(0.001) and len(outputs_sent(harness)) == 1
    clock.advance(0.002)
    harness.server.tick(clock.now())
    assert len(outputs_sent(harness)) == 2
    for name in "pq":
        tokens = [token for output in harness.outputs(b"a", name) for token in output.token_ids]
        request = make_request(name, max_tokens=4)
        assert tokens == expected_tokens(request.prompt_token_ids, request.params, FakeConfig())
    assert harness.server.tick(clock.now()) > 0.1, "only the next heartbeat is due"


def test_no_client_waits_longer_than_the_longest_pause(make_harness: Callable[..., ServerHarness]) -> None:
    harness, clock = make_delayed_outputs(make_harness, 1e9)
    clock.advance(MAX_PAUSE_SECONDS + 0.001)
    harness.server.tick(clock.now())
    assert sum(output.is_final for name in "pq" for output in harness.outputs(b"a", name)) == 2


def test_the_end_of_a_pause_sends_nothing_to_a_client_with_a_full_window(
    make_harness: Callable[..., ServerHarness],
) -> None:
    harness, clock = make_delayed_outputs(make_harness, 0.001)
    (session,) = harness.server._sessions.values()
    session.num_unread = ACK_WINDOW
    clock.advance(1.0)
    before = len(outputs_sent(harness))
    harness.server.tick(clock.now())
    assert len(outputs_sent(harness)) == before
    harness.send(b"a", Ack(1), now=clock.now())
    assert len(outputs_sent(harness)) == before + 1


def test_delayed_outputs_are_sent_before_the_goodbye(make_harness: Callable[..., ServerHarness]) -> None:
    harness, _ = make_delayed_outputs(make_harness, 1e9)
    harness.server.shutdown("time is up")
    assert harness.outputs(b"a", "q")[-1].finish_reason is FinishReason.LENGTH
    assert harness.messages[b"a"][-1] == Goodbye("time is up")
