"""A request whose grammar is being compiled is open: it can end, is counted, and delays no other request."""

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import EngineDead, InvalidRequest, QueueFull, RequestTimeout, StructuredOutputFailed
from chairlift.core.request import GenerateRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.client import inline
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.structured import mask_worker
from chairlift.engine.structured.grammar_compiler import GrammarCompiler
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.mask_filler import MaskFiller
from support_engine import TIMEOUT_SECONDS, Hook, RequestSink, make_request, submit
from support_grammars import EOS, VOCAB_SIZE, VOCABULARY, grammar_of
from support_process import wait_until

FAKE = FakeConfig(vocab_size=VOCAB_SIZE, num_blocks=64, block_size=4)


def start(vocabulary: GrammarTokenizer = VOCABULARY, *, hook: Hook | None = None, **options: Any) -> InlineClient:
    return InlineClient(EngineLoop(FakeRunner(FAKE, hook=hook), SchedulerConfig(**options)), vocabulary)


@pytest.fixture
def client() -> Iterator[InlineClient]:
    client = start()
    yield client
    client.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No grammar compiles until this event is set."""
    gate, check = threading.Event(), GrammarCompiler._check

    def held(self: GrammarCompiler, structured: StructuredOutput) -> str:
        assert gate.wait(TIMEOUT_SECONDS)
        return check(self, structured)

    monkeypatch.setattr(GrammarCompiler, "_check", held)
    yield gate
    gate.set()


def structured(name: str, max_tokens: int = 20, regex: str = "[ab]{3}c", **options: Any) -> GenerateRequest:
    request = make_request(name, 5, max_tokens, eos_token_ids=(EOS,), **options)
    return replace(request, params=replace(request.params, structured=StructuredOutput(regex=regex)))


@pytest.mark.parametrize("is_slow", [False, True])
def test_masks_that_come_soon_are_there_before_the_launch(is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the runner keeps every processor busy, masks are computed before the launch."""
    events: list[str] = []

    class Watched(FakeRunner):
        def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
            events.append(f"masks {step_id}")
            super().supply_masks(step_id, masks)

    launched, real_fill = threading.Event(), MaskFiller.fill

    def hook(plan: StepPlan, stage: str) -> None:
        events.append(f"{stage} {plan.step_id}")
        if stage == "launch":
            launched.set()

    def fill_after_the_launch(*arguments: Any) -> None:
        launched.wait(TIMEOUT_SECONDS)
        launched.clear()
        real_fill(*arguments)

    monkeypatch.setattr(mask_worker, "MAX_MASK_SECONDS", 0.0 if is_slow else TIMEOUT_SECONDS)
    if is_slow:
        monkeypatch.setattr(MaskFiller, "fill", fill_after_the_launch)
    loop = EngineLoop(Watched(replace(FAKE, busy_cpus=tuple(sorted(usable_cpus()))), hook=hook), SchedulerConfig())
    loop.start()
    try:
        submit(loop, structured("a"), [grammar_of(regex="[ab]{3}c")])
        while not loop.is_idle:
            loop.step()
    finally:
        loop.stop()
    first, second = ("launch", "masks") if is_slow else ("masks", "launch")
    steps = len(events) // 3
    assert steps == 4 and events == [
        f"{event_name} {step}" for step in range(steps) for event_name in (first, second, "collect")
    ]


def is_idle(client: InlineClient) -> bool:
    report = client.load()
    return not report.waiting_requests and not report.running_requests and client.check_integrity() == []


def test_the_output_follows_it_and_its_life_tells_when_it_was_compiled(client: InlineClient) -> None:
    sink = RequestSink()
    client.submit(structured("a"), sink)
    final = sink.wait()
    assert final.finish_reason is FinishReason.STOP
    assert len(sink.tokens) == 4 and set(sink.tokens[:3]) <= {97, 98} and sink.tokens[3] == 99
    assert final.timeline is not None
    names = {event.name: event.at for event in final.timeline.events}
    assert names["queued"] == 0 < names["grammar_compiled"] <= names["scheduled"]


def test_while_it_is_compiled_it_is_counted_as_waiting(client: InlineClient, gate: threading.Event) -> None:
    sink = RequestSink()
    client.submit(structured("a"), sink)
    wait_until(lambda: client.load().waiting_requests == 1)
    assert client.load().waiting_tokens == 5 and client.load().running_requests == 0
    gate.set()
    sink.wait()
    assert is_idle(client)


def test_others_go_on_meanwhile(client: InlineClient, gate: threading.Event) -> None:
    first, second = RequestSink(), RequestSink()
    client.submit(structured("a"), first)
    client.submit(make_request("b", 5, 30), second)
    assert second.wait().finish_reason is FinishReason.LENGTH and not first.calls


@pytest.mark.full
def test_an_abort_ends_it_before_it_is_compiled_and_its_name_is_free(
    client: InlineClient, gate: threading.Event
) -> None:
    first, second = RequestSink(), RequestSink()
    client.submit(structured("a"), first)
    client.abort("a")
    final = first.wait()
    assert final.finish_reason is FinishReason.ABORT and final.usage is not None and final.usage.prompt_tokens == 5
    client.submit(structured("a"), second)
    gate.set()
    assert second.wait().finish_reason is FinishReason.STOP
    assert len(first.outputs) == 1 and is_idle(client)


def test_one_choice_of_it_can_be_aborted_before_it_is_compiled(client: InlineClient, gate: threading.Event) -> None:
    sink = RequestSink()
    client.submit(structured("a", n=3), sink)
    client.abort("a", 1)
    gate.set()
    sink.wait_for_last()
    reasons = {output.choice_index: output.finish_reason for output in sink.finals}
    assert reasons == {0: FinishReason.STOP, 1: FinishReason.ABORT, 2: FinishReason.STOP}
    assert {output.choice_index for output in sink.outputs if output.token_ids} == {0, 2} and is_idle(client)


def test_its_time_runs_while_it_is_compiled_and_what_is_said_names_all_of_it(
    client: InlineClient, gate: threading.Event
) -> None:
    sink = RequestSink()
    client.submit(structured("a", timeout=0.25), sink)
    error = sink.wait().error
    assert isinstance(error, RequestTimeout) and error.details["timeout"] == 0.25
    assert is_idle(client)


@pytest.mark.parametrize("after_a_step", [False, True])
def test_its_time_is_up_while_the_engine_has_not_been_idle_for_long(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event, after_a_step: bool
) -> None:
    monkeypatch.setattr(inline, "IDLE_CHECK_SECONDS", 3600)
    client, first, sink = start(), RequestSink(), RequestSink()
    if after_a_step:
        client.submit(make_request("b", 3), first)
        first.wait()
    client.submit(structured("a", timeout=0.05), sink)
    assert isinstance(sink.wait().error, RequestTimeout)
    gate.set()  # closing waits for the compiler thread
    client.close()


@pytest.mark.full
def test_a_request_that_is_sent_again_waits_for_its_own_grammar(client: InlineClient, gate: threading.Event) -> None:
    """The same request object: the grammar of the aborted request is not used for the second one."""
    request, first, second, other = structured("a"), RequestSink(), RequestSink(), RequestSink()
    client.submit(request, first)
    client.abort("a")
    first.wait()
    client.submit(request, second)
    client.submit(make_request("b", 3), other)
    assert other.wait().finish_reason is FinishReason.LENGTH
    gate.set()
    assert second.wait().finish_reason is FinishReason.STOP and len(first.outputs) == 1


def test_closing_ends_it_with_the_engine(client: InlineClient, gate: threading.Event) -> None:
    sink = RequestSink()
    client.submit(structured("a"), sink)
    threading.Timer(0.1, gate.set).start()
    client.close()
    assert isinstance(sink.wait().error, EngineDead) and len(sink.outputs) == 1


def test_an_engine_that_dies_meanwhile_ends_it(gate: threading.Event) -> None:
    def hook(plan: StepPlan, stage: str) -> None:
        raise EngineDead("the device is gone")

    client, first, second = start(hook=hook), RequestSink(), RequestSink()
    client.submit(structured("a"), first)
    client.submit(make_request("b", 3), second)
    threading.Timer(0.1, gate.set).start()
    assert isinstance(first.wait().error, EngineDead) and isinstance(second.wait().error, EngineDead)
    client.close()
    assert len(first.outputs) == len(second.outputs) == 1


@pytest.mark.full
def test_as_many_can_be_compiled_as_can_be_in_the_waiting_queue(gate: threading.Event) -> None:
    client, sinks = start(max_queue_size=2), [RequestSink() for _ in range(3)]
    for number, sink in enumerate(sinks):
        client.submit(structured(str(number)), sink)
    assert isinstance(sinks[2].wait().error, QueueFull)
    gate.set()
    assert [sink.wait().finish_reason for sink in sinks[:2]] == [FinishReason.STOP] * 2
    assert is_idle(client)
    client.close()


def test_an_internal_error_while_it_is_compiled_is_its_error_alone(
    client: InlineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: GrammarCompiler, structured: StructuredOutput) -> str:
        raise ZeroDivisionError("an internal error")

    monkeypatch.setattr(GrammarCompiler, "_check", broken)
    sink, other = RequestSink(), RequestSink()
    client.submit(structured("a"), sink)
    assert isinstance(sink.wait().error, StructuredOutputFailed)
    client.submit(make_request("b", 3), other)
    assert other.wait().finish_reason is FinishReason.LENGTH and is_idle(client)


def test_where_no_thread_can_be_had_it_is_its_error_alone(
    client: InlineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: GrammarCompiler, request: GenerateRequest) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(GrammarCompiler, "compile_request", none_left)
    sink = RequestSink()
    client.submit(structured("a"), sink)
    error = sink.wait().error
    assert isinstance(error, StructuredOutputFailed) and "can't start new thread" in error.message and is_idle(client)


def test_the_grammar_tokenizer_is_built_while_the_engine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not built at the start or during a step, which it would delay."""
    monkeypatch.setattr(inline, "IDLE_CHECK_SECONDS", 3600)
    client, sink = start(), RequestSink()
    grammar_compiler = client._grammar_compiler
    assert grammar_compiler is not None and grammar_compiler._tokenizer is None
    client.submit(make_request("a", 5, 5), sink)
    sink.wait()
    assert grammar_compiler._tokenizer is None
    monkeypatch.setattr(inline, "IDLE_CHECK_SECONDS", 0.2)
    client.load()  # a call in the meantime does not delay it
    wait_until(lambda: grammar_compiler._tokenizer is not None)
    client.close()


def test_a_model_whose_tokenizer_no_grammar_can_use_serves_all_other_requests(caplog: pytest.LogCaptureFixture) -> None:
    words = {f"w{number}": number for number in range(VOCAB_SIZE)}
    tokenizer = json.loads(Tokenizer(WordLevel(words, unk_token="w0")).to_str())
    caplog.set_level(logging.INFO, "chairlift")
    client = start(GrammarTokenizer(json.dumps(tokenizer).encode(), (EOS,)))
    plain, sink = RequestSink(), RequestSink()
    client.submit(make_request("a", 5, 5), plain)
    assert plain.wait().finish_reason is FinishReason.LENGTH
    wait_until(lambda: "structured: not possible with this model's tokenizer" in caplog.text)
    client.submit(structured("b"), sink)
    error = sink.wait().error
    assert isinstance(error, InvalidRequest) and "this model's tokenizer" in error.message
    assert is_idle(client)
    client.close()
