"""Assembler: one request's outputs, cut as the engine may cut them, become the same text, ids and final answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import DetokenizeFailed, EngineDead
from chairlift.core.request import FinishReason, GenerateRequest, Output, TokenLogprob, Usage
from chairlift.core.sampling import SamplingParams
from chairlift.llm.assembler import Assembler
from chairlift.text.tokenizer import ByteTokenizer
from support_services import AsciiTokenizer

PROMPT = (1, 2, 3)


def assembler(eos: tuple[int, ...] = (), tokenizer: Any = None, bare: bool = False, **params: Any) -> Assembler:
    resolved = SamplingParams(**params).resolved({}, max_tokens=100, seed=4)
    request = GenerateRequest(request_id="r", prompt_token_ids=PROMPT, params=resolved, eos_token_ids=eos)
    return Assembler(request, "prompt", None if bare else tokenizer or ByteTokenizer())


def outputs(pieces: list[bytes], reason: FinishReason, **last: Any) -> list[Output]:
    usage = Usage(3, sum(map(len, pieces)), 2)
    return [
        *(Output("r", tuple(piece)) for piece in pieces[:-1]),
        Output("r", tuple(pieces[-1]), finish_reason=reason, usage=usage, **last),
    ]


@given(st.data())
def test_text_and_end_do_not_depend_on_how_the_tokens_are_cut(data: st.DataObject) -> None:
    said = data.draw(st.text("ab \u00e9\u4e2d", min_size=1, max_size=30)).encode()
    stop = data.draw(st.text("ab\u00e9", min_size=1, max_size=3))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(said)))) | {len(said)})
    pieces = [said[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
    under_test = assembler(stop=stop)
    events = [under_test.take(output) for output in outputs(pieces, FinishReason.LENGTH)]
    result = under_test.result().outputs[0]
    text = said.decode()
    at = text.find(stop)
    assert result.text == (text if at < 0 else text[:at])
    assert result.finish_reason == ("length" if at < 0 else "stop")
    assert bytes(result.token_ids) == (said if at < 0 else text[: at + len(stop)].encode())
    assert "".join(event.delta for event in events if event is not None) == result.text
    assert sum(event is not None and event.finish_reason is not None for event in events) == 1


def test_half_a_character_waits_for_its_other_half() -> None:
    under_test = assembler()
    deltas = [under_test.take(output) for output in outputs([b"\xe4", b"\xb8", b"\xad!"], FinishReason.LENGTH)]
    assert [event.delta for event in deltas if event] == ["", "", "中!"]


def test_half_a_character_at_the_end_is_a_replacement_character() -> None:
    under_test = assembler()
    for output in outputs([b"a\xe4"], FinishReason.LENGTH):
        under_test.take(output)
    assert under_test.result().outputs[0].text == "a\ufffd"


def test_after_a_stop_string_the_engines_news_is_dropped() -> None:
    under_test = assembler(stop="b")
    first = under_test.take(Output("r", tuple(b"abc")))
    assert first is not None and first.finish_reason == "stop" and first.token_ids == tuple(b"ab")
    assert under_test.must_abort and under_test.is_finished
    assert under_test.take(Output("r", tuple(b"ddd"))) is None
    assert under_test.take(Output("r", (), finish_reason=FinishReason.ABORT)) is None
    result = under_test.result()
    assert result.outputs[0].text == "a" and result.usage == Usage(3, 2, 0)


def test_a_stop_string_in_the_last_output_needs_no_abort() -> None:
    under_test = assembler(stop="b")
    for output in outputs([b"ab"], FinishReason.LENGTH):
        under_test.take(output)
    assert not under_test.must_abort
    assert under_test.result().outputs[0].finish_reason == "stop"
    assert under_test.result().usage.cached_tokens == 2


@pytest.mark.parametrize(("eos", "stop_ids", "reason"), [((98,), (), None), ((), (98,), 98), ((98,), (98,), None)])
def test_the_token_that_stops_has_no_text(eos: tuple[int, ...], stop_ids: tuple[int, ...], reason: Any) -> None:
    under_test = assembler(eos, stop_token_ids=stop_ids)
    for output in outputs([b"a", b"b"], FinishReason.STOP):
        under_test.take(output)
    choice = under_test.result().outputs[0]
    assert (choice.text, choice.token_ids, choice.finish_reason, choice.stop_reason) == ("a", [97, 98], "stop", reason)


def test_a_stop_token_that_came_too_early_to_stop_is_text() -> None:
    under_test = assembler(stop_token_ids=(98,), min_tokens=2)
    for output in outputs([b"b", b"a"], FinishReason.LENGTH):
        under_test.take(output)
    assert under_test.result().outputs[0].text == "ba"


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a<|bos|>b")])
def test_special_tokens_are_text_only_when_asked_for(skip: bool, text: str) -> None:
    under_test = assembler(skip_special_tokens=skip)
    under_test.take(Output("r", (97, 256, 98), finish_reason=FinishReason.LENGTH))
    assert under_test.result().outputs[0].text == text


def test_an_engines_error_keeps_what_was_said() -> None:
    under_test, error = assembler(), EngineDead("gone")
    under_test.take(Output("r", tuple(b"so far")))
    event = under_test.take(Output("r", finish_reason=FinishReason.ERROR, error=error))
    assert event is not None and event.error is error
    result = under_test.result()
    assert result.error is error and result.outputs[0].text == "so far"
    assert result.usage == Usage(3, 6, 0)  # the engine could not say, so it is counted here


def test_text_that_cannot_be_made_is_a_typed_error_and_asks_for_an_abort() -> None:
    under_test = assembler(tokenizer=AsciiTokenizer(broken=66))
    under_test.take(Output("r", tuple(b"ok")))
    event = under_test.take(Output("r", (66,)))
    assert event is not None and isinstance(event.error, DetokenizeFailed) and event.finish_reason == "error"
    assert under_test.must_abort
    assert under_test.result().outputs[0].text == "ok"


def test_logprobs_follow_the_tokens_that_count() -> None:
    under_test = assembler(stop="b", logprobs=1)
    entries = tuple(TokenLogprob(token, -0.5) for token in b"abc")
    under_test.take(Output("r", tuple(b"abc"), entries))
    assert [entry.token_id for entry in under_test.result().outputs[0].logprobs or ()] == list(b"ab")


def test_without_a_tokenizer_there_are_ids_and_no_text() -> None:
    under_test = assembler(bare=True)
    for output in outputs([b"ab", b"c"], FinishReason.LENGTH):
        under_test.take(output)
    choice = under_test.result().outputs[0]
    assert (choice.text, choice.token_ids) == ("", list(b"abc"))
