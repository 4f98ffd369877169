"""A request whose grammar is being compiled is open: it can end, is counted, and delays no other request."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.errors import EngineDead, InvalidRequest, QueueFull, RequestTimeout, StructuredOutputFailed
from chairlift.core.request import FinishReason, GenerateRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.client import inline
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeConfig, FakeRunner
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.structured import mask_worker
from chairlift.engine.structured.grammar import MaskFiller
from chairlift.engine.structured.grammar_compiler import GrammarCompiler
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from support_engine import PATIENCE, Box, Hook, ask
from support_process import wait_until
from support_structure import EOS, VOCAB_SIZE, VOCABULARY, grammar_of

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
    gate, checked = threading.Event(), GrammarCompiler._checked

    def held(self: GrammarCompiler, structured: StructuredOutput) -> str:
        assert gate.wait(PATIENCE)
        return checked(self, structured)

    monkeypatch.setattr(GrammarCompiler, "_checked", held)
    yield gate
    gate.set()


def structured(name: str, max_tokens: int = 20, regex: str = "[ab]{3}c", **options: Any) -> GenerateRequest:
    request = ask(name, 5, max_tokens, eos_token_ids=(EOS,), **options)
    return replace(request, params=replace(request.params, structured=StructuredOutput(regex=regex)))


@pytest.mark.parametrize("is_slow", [False, True])
def test_masks_that_come_soon_are_there_before_the_launch(is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the runner has every processor: then a step need not stop for them."""
    seen: list[str] = []

    class Watched(FakeRunner):
        def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
            seen.append(f"masks {step_id}")
            super().supply_masks(step_id, masks)

    def hook(plan: StepPlan, stage: str) -> None:
        seen.append(f"{stage} {plan.step_id}")

    monkeypatch.setattr(mask_worker, "PATIENCE_SECONDS", 0.0 if is_slow else PATIENCE)
    if is_slow:
        real = MaskFiller.fill
        monkeypatch.setattr(MaskFiller, "fill", lambda *given: (time.sleep(0.01), real(*given)))
    loop = EngineLoop(Watched(replace(FAKE, cpus=tuple(sorted(usable_cpus()))), hook=hook), SchedulerConfig())
    loop.start()
    try:
        loop.submit(structured("a"), [grammar_of(regex="[ab]{3}c")])
        while not loop.is_idle:
            loop.step()
    finally:
        loop.stop()
    first, second = ("launch", "masks") if is_slow else ("masks", "launch")
    steps = len(seen) // 3
    assert steps == 4 and seen == [f"{what} {step}" for step in range(steps) for what in (first, second, "collect")]


def is_idle(client: InlineClient) -> bool:
    report = client.load()
    return not report.waiting_requests and not report.running_requests and client.check_integrity() == []


def test_the_output_follows_it_and_its_life_tells_when_it_was_compiled(client: InlineClient) -> None:
    box = Box()
    client.submit(structured("a"), box)
    final = box.wait()
    assert final.finish_reason is FinishReason.STOP
    assert len(box.tokens) == 4 and set(box.tokens[:3]) <= {97, 98} and box.tokens[3] == 99
    assert final.timeline is not None
    names = {event.name: event.at for event in final.timeline.events}
    assert names["queued"] == 0 < names["compiled"] <= names["scheduled"]


def test_while_it_is_compiled_it_is_counted_as_waiting(client: InlineClient, gate: threading.Event) -> None:
    box = Box()
    client.submit(structured("a"), box)
    wait_until(lambda: client.load().waiting_requests == 1)
    assert client.load().waiting_tokens == 5 and client.load().running_requests == 0
    gate.set()
    box.wait()
    assert is_idle(client)


def test_others_go_on_meanwhile(client: InlineClient, gate: threading.Event) -> None:
    first, second = Box(), Box()
    client.submit(structured("a"), first)
    client.submit(ask("b", 5, 30), second)
    assert second.wait().finish_reason is FinishReason.LENGTH and not first.calls


def test_an_abort_ends_it_before_it_is_compiled_and_its_name_is_free(
    client: InlineClient, gate: threading.Event
) -> None:
    first, second = Box(), Box()
    client.submit(structured("a"), first)
    client.abort("a")
    final = first.wait()
    assert final.finish_reason is FinishReason.ABORT and final.usage is not None and final.usage.prompt_tokens == 5
    client.submit(structured("a"), second)
    gate.set()
    assert second.wait().finish_reason is FinishReason.STOP
    assert len(first.outputs) == 1 and is_idle(client)


def test_one_choice_of_it_can_be_aborted_before_it_is_compiled(client: InlineClient, gate: threading.Event) -> None:
    box = Box()
    client.submit(structured("a", n=3), box)
    client.abort("a", 1)
    gate.set()
    box.wait_for_last()
    reasons = {output.choice_index: output.finish_reason for output in box.finals}
    assert reasons == {0: FinishReason.STOP, 1: FinishReason.ABORT, 2: FinishReason.STOP}
    assert {output.choice_index for output in box.outputs if output.token_ids} == {0, 2} and is_idle(client)


def test_its_time_runs_while_it_is_compiled_and_what_is_said_names_all_of_it(
    client: InlineClient, gate: threading.Event
) -> None:
    box = Box()
    client.submit(structured("a", timeout=0.25), box)
    error = box.wait().error
    assert isinstance(error, RequestTimeout) and error.details["timeout"] == 0.25
    assert is_idle(client)


@pytest.mark.parametrize("after_a_step", [False, True])
def test_its_time_is_up_while_the_engine_has_not_been_idle_for_long(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event, after_a_step: bool
) -> None:
    monkeypatch.setattr(inline, "IDLE_CHECK_SECONDS", 3600)
    client, first, box = start(), Box(), Box()
    if after_a_step:
        client.submit(ask("b", 3), first)
        first.wait()
    client.submit(structured("a", timeout=0.05), box)
    assert isinstance(box.wait().error, RequestTimeout)
    gate.set()  # closing waits for whoever compiles
    client.close()


def test_a_request_that_is_sent_again_waits_for_its_own_grammar(client: InlineClient, gate: threading.Event) -> None:
    """The same object: what was made for the one that was aborted is not taken for the other's, nor waited for."""
    request, first, second, other = structured("a"), Box(), Box(), Box()
    client.submit(request, first)
    client.abort("a")
    first.wait()
    client.submit(request, second)
    client.submit(ask("b", 3), other)
    assert other.wait().finish_reason is FinishReason.LENGTH
    gate.set()
    assert second.wait().finish_reason is FinishReason.STOP and len(first.outputs) == 1


def test_closing_ends_it_with_the_engine(client: InlineClient, gate: threading.Event) -> None:
    box = Box()
    client.submit(structured("a"), box)
    threading.Timer(0.1, gate.set).start()
    client.close()
    assert isinstance(box.wait().error, EngineDead) and len(box.outputs) == 1


def test_an_engine_that_dies_meanwhile_ends_it(gate: threading.Event) -> None:
    def hook(plan: StepPlan, stage: str) -> None:
        raise EngineDead("the device is gone")

    client, first, second = start(hook=hook), Box(), Box()
    client.submit(structured("a"), first)
    client.submit(ask("b", 3), second)
    threading.Timer(0.1, gate.set).start()
    assert isinstance(first.wait().error, EngineDead) and isinstance(second.wait().error, EngineDead)
    client.close()
    assert len(first.outputs) == len(second.outputs) == 1


def test_as_many_can_be_compiled_as_can_be_in_line(gate: threading.Event) -> None:
    client, boxes = start(max_queue_size=2), [Box() for _ in range(3)]
    for number, box in enumerate(boxes):
        client.submit(structured(str(number)), box)
    assert isinstance(boxes[2].wait().error, QueueFull)
    gate.set()
    assert [box.wait().finish_reason for box in boxes[:2]] == [FinishReason.STOP] * 2
    assert is_idle(client)
    client.close()


def test_a_fault_of_ours_while_it_is_compiled_is_its_error_alone(
    client: InlineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: GrammarCompiler, structured: StructuredOutput) -> str:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(GrammarCompiler, "_checked", broken)
    box, other = Box(), Box()
    client.submit(structured("a"), box)
    assert isinstance(box.wait().error, StructuredOutputFailed)
    client.submit(ask("b", 3), other)
    assert other.wait().finish_reason is FinishReason.LENGTH and is_idle(client)


def test_where_no_thread_can_be_had_it_is_its_error_alone(
    client: InlineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: GrammarCompiler, request: GenerateRequest) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(GrammarCompiler, "compile_request", none_left)
    box = Box()
    client.submit(structured("a"), box)
    error = box.wait().error
    assert isinstance(error, StructuredOutputFailed) and "can't start new thread" in error.message and is_idle(client)


def test_the_grammar_tokenizer_is_built_while_the_engine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the start, which it would delay, and not beside a step, which it would hold up."""
    monkeypatch.setattr(inline, "IDLE_CHECK_SECONDS", 3600)
    client, box = start(), Box()
    structures = client._grammar_compiler
    assert structures is not None and structures._tokenizer is None
    client.submit(ask("a", 5, 5), box)
    box.wait()
    assert structures._tokenizer is None
    monkeypatch.setattr(inline, "IDLE_CHECK_SECONDS", 0.2)
    client.load()  # who asks meanwhile does not put it off
    wait_until(lambda: structures._tokenizer is not None)
    client.close()


def test_a_model_whose_tokenizer_no_grammar_can_use_serves_all_other_requests(caplog: pytest.LogCaptureFixture) -> None:
    words = {f"w{number}": number for number in range(VOCAB_SIZE)}
    tokenizer = json.loads(Tokenizer(WordLevel(words, unk_token="w0")).to_str())
    caplog.set_level(logging.INFO, "chairlift")
    client = start(GrammarTokenizer(json.dumps(tokenizer).encode(), (EOS,)))
    plain, box = Box(), Box()
    client.submit(ask("a", 5, 5), plain)
    assert plain.wait().finish_reason is FinishReason.LENGTH
    wait_until(lambda: "structured: no output of this model's tokenizer" in caplog.text)
    client.submit(structured("b"), box)
    error = box.wait().error
    assert isinstance(error, InvalidRequest) and "this model's tokenizer" in error.message
    assert is_idle(client)
    client.close()
