"""InlineClient: a warm-up changes no output, and its failure ends at most the engine."""

import threading
import time

import pytest

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import EngineDead
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import expected_tokens
from support_engine import RequestSink, make_request
from support_inline import FAKE, WAIT_SECONDS, StepGate, start_client


@pytest.mark.parametrize("overlap", [False, True])
def test_a_warm_up_between_steps_changes_nothing(overlap: bool) -> None:
    runner = FakeRunner(FAKE)
    client = start_client(runner, overlap=overlap)
    sinks = [RequestSink() for _ in range(8)]
    requests = [make_request(str(number), [number, 5, 6], 90) for number in range(8)]
    for request, sink in zip(requests, sinks, strict=True):
        client.submit(request, sink)
    for _ in range(5):
        assert client.warmup() >= 0
    for request, sink in zip(requests, sinks, strict=True):
        assert sink.wait().finish_reason is FinishReason.LENGTH
        assert sink.tokens == expected_tokens(request.prompt_token_ids, request.params, FAKE)
    before = client.load(), client.cache_state(), client.scheduler_state()
    client.warmup()
    assert (client.load(), client.cache_state(), client.scheduler_state()) == before
    assert runner.warmups == 6 and client.check_integrity() == [] and before[0].output_tokens == 8 * 90
    client.close()
    with pytest.raises(EngineDead):
        client.warmup()


def test_a_warm_up_that_fails_is_reported_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out_of_memory() -> None:
        raise MemoryError("no memory for 2048 tokens")

    runner = FakeRunner(FAKE)
    monkeypatch.setattr(runner, "warmup", run_out_of_memory)
    client, sink = start_client(runner), RequestSink()
    with pytest.raises(MemoryError, match="no memory"):
        client.warmup()
    client.submit(make_request("a", 3, 5), sink)
    assert sink.wait().finish_reason is FinishReason.LENGTH
    client.close()


def test_a_runner_that_dies_while_its_steps_are_collected_for_a_warm_up_ends_all_requests(
    gated_client: InlineClient, gate: StepGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_collect() -> list[EngineOutput]:
        raise EngineDead("the device is gone")

    monkeypatch.setattr(gated_client.loop, "collect_in_flight", fail_to_collect)
    sink = RequestSink()
    gated_client.submit(make_request("a", 3, 90), sink)
    gate.opened.set()
    with pytest.raises(EngineDead, match="the device is gone"):
        gated_client.warmup()
    assert "the device is gone" in str(sink.wait().error)


def test_an_internal_error_while_steps_are_collected_for_a_warm_up_ends_the_engine(
    gated_client: InlineClient, gate: StepGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_collect() -> list[EngineOutput]:
        raise AssertionError("half committed")

    monkeypatch.setattr(gated_client.loop, "collect_in_flight", fail_to_collect)
    sink = RequestSink()
    gated_client.submit(make_request("a", 3, 90), sink)
    gate.opened.set()
    with pytest.raises(EngineDead, match="failed with an internal error"):
        gated_client.warmup()
    assert sink.wait().finish_reason is FinishReason.ERROR and gated_client.fatal_error is not None


def test_a_runner_that_dies_of_its_warm_up_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_fatally() -> None:
        raise EngineDead("the device is gone")

    runner = FakeRunner(FAKE)
    monkeypatch.setattr(runner, "warmup", fail_fatally)
    client = start_client(runner)
    with pytest.raises(EngineDead, match="the device is gone"):
        client.warmup()
    client.thread.join(WAIT_SECONDS)
    assert client.fatal_error is not None
    client.close()


def test_a_warm_up_has_a_beginning_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, began, release = FakeRunner(FAKE), threading.Event(), threading.Event()

    def block() -> None:
        began.set()
        assert release.wait(WAIT_SECONDS)

    monkeypatch.setattr(runner, "warmup", block)
    client = start_client(runner)
    assert client.warmup_started_at is None
    warming = threading.Thread(target=client.warmup)
    warming.start()
    assert began.wait(WAIT_SECONDS)
    assert (
        client.warmup_started_at is not None
        and client.warmup_started_at <= time.monotonic()
        and client.step_started_at is None
    )
    release.set()
    warming.join(WAIT_SECONDS)
    assert client.warmup_started_at is None
    client.close()
