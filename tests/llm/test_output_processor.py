"""OutputProcessor: outputs of one request, however split, become the same text, ids and result."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.engine_output import EngineOutput, FinishReason, TokenLogprob, Usage
from chairlift.core.errors import DetokenizeFailed, EngineDead
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import MODEL_DEFAULTS, SamplingParams
from chairlift.llm.output_processor import OutputProcessor
from chairlift.text.byte_tokenizer import ByteTokenizer
from support_engine import validated
from support_services import AsciiTokenizer
from support_shares import for_each

PROMPT = (1, 2, 3)


def make_processor(
    eos: tuple[int, ...] = (), tokenizer: Any = None, bare: bool = False, resume: tuple[bytes, ...] = (),
    prompt: str | None = "prompt", **params: Any,
) -> OutputProcessor:  # fmt: skip
    user_params = SamplingParams(**{**MODEL_DEFAULTS, **params}).with_defaults({}, max_tokens=100, seed=4)
    engine_params = (
        replace(user_params, logprobs=0)
        if user_params.num_choices > user_params.n and user_params.logprobs is None
        else user_params
    )
    request = GenerateRequest(
        request_id="r", prompt_token_ids=PROMPT,
        params=replace(engine_params, max_tokens=engine_params.max_tokens or 1), eos_token_ids=eos,
        resume=tuple(tuple(tokens) for tokens in resume),
    )  # fmt: skip
    return OutputProcessor(validated(request), prompt, None if bare else tokenizer or ByteTokenizer(), user_params)


def outputs(parts: list[bytes], reason: FinishReason, **last: Any) -> list[EngineOutput]:
    usage = Usage(3, sum(map(len, parts)), 2)
    return [
        *(EngineOutput("r", tuple(part)) for part in parts[:-1]),
        EngineOutput("r", tuple(parts[-1]), finish_reason=reason, usage=usage, **last),
    ]


@given(st.data())
def test_text_and_end_do_not_depend_on_how_the_tokens_are_cut(data: st.DataObject) -> None:
    output_bytes = data.draw(st.text("ab \u00e9\u4e2d", min_size=1, max_size=30)).encode()
    stop = data.draw(st.text("ab\u00e9", min_size=1, max_size=3))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(output_bytes)))) | {len(output_bytes)})
    parts = [output_bytes[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
    processor = make_processor(stop=stop)
    events = [event for output in outputs(parts, FinishReason.LENGTH) for event in processor.process(output)]
    result = processor.result().outputs[0]
    text = output_bytes.decode()
    at = text.find(stop)
    assert result.text == (text if at < 0 else text[:at])
    assert result.finish_reason == ("length" if at < 0 else "stop")
    assert bytes(result.token_ids) == (output_bytes if at < 0 else text[: at + len(stop)].encode())
    assert "".join(event.delta for event in events) == result.text
    assert [event.is_final for event in events] == [False] * (len(events) - 1) + [True]


def test_half_a_character_waits_for_its_other_half() -> None:
    processor = make_processor()
    output_bytes = outputs([b"\xe4", b"\xb8", b"\xad!"], FinishReason.LENGTH)
    assert [event.delta for output in output_bytes for event in processor.process(output)] == ["", "", "中!"]


def test_half_a_character_at_the_end_is_a_replacement_character() -> None:
    processor = make_processor()
    for output in outputs([b"a\xe4"], FinishReason.LENGTH):
        processor.process(output)
    assert processor.result().outputs[0].text == "a\ufffd"


def test_after_a_stop_string_the_engines_news_is_dropped() -> None:
    processor = make_processor(stop="b")
    (first,) = processor.process(EngineOutput("r", tuple(b"abc")))
    assert first.finish_reason == "stop" and first.token_ids == tuple(b"ab")
    assert processor.pending_aborts == [0] and processor.is_finished
    assert processor.process(EngineOutput("r", tuple(b"ddd"))) == []
    assert processor.process(EngineOutput("r", (), finish_reason=FinishReason.ABORT)) == []
    result = processor.result()
    assert result.outputs[0].text == "a" and result.usage == Usage(3, 2, 0)


def test_a_stop_string_in_the_last_output_needs_no_abort() -> None:
    processor = make_processor(stop="b")
    for output in outputs([b"ab"], FinishReason.LENGTH):
        processor.process(output)
    assert not processor.pending_aborts
    assert processor.result().outputs[0].finish_reason == "stop"
    assert processor.result().usage.cached_tokens == 2


@pytest.mark.parametrize(("eos", "stop_ids", "reason"), [((98,), (), None), ((), (98,), 98), ((98,), (98,), None)])
def test_the_token_that_stops_has_no_text(eos: tuple[int, ...], stop_ids: tuple[int, ...], reason: Any) -> None:
    processor = make_processor(eos, stop_token_ids=stop_ids)
    for output in outputs([b"a", b"b"], FinishReason.STOP):
        processor.process(output)
    choice = processor.result().outputs[0]
    assert (choice.text, choice.token_ids, choice.finish_reason, choice.stop_reason) == ("a", [97, 98], "stop", reason)


def test_a_stop_token_that_came_too_early_to_stop_is_text() -> None:
    processor = make_processor(stop_token_ids=(98,), min_tokens=2)
    for output in outputs([b"b", b"a"], FinishReason.LENGTH):
        processor.process(output)
    assert processor.result().outputs[0].text == "ba"


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a<|bos|>b")])
def test_special_tokens_are_text_only_when_asked_for(skip: bool, text: str) -> None:
    processor = make_processor(skip_special_tokens=skip)
    processor.process(EngineOutput("r", (97, 256, 98), finish_reason=FinishReason.LENGTH, usage=Usage(3, 3, 0)))
    assert processor.result().outputs[0].text == text


def test_an_engines_error_keeps_what_was_said() -> None:
    processor, error = make_processor(), EngineDead("gone")
    processor.process(EngineOutput("r", tuple(b"so far")))
    (event,) = processor.process(EngineOutput.failed(processor.request, error))
    assert event.error is error and event.is_final
    result = processor.result()
    assert result.error is error and result.outputs[0].text == "so far"
    assert result.usage == Usage(3, 6, 0)  # the engine sent no usage, so the processor counts


def test_text_that_cannot_be_made_is_a_typed_error_and_asks_for_an_abort() -> None:
    processor = make_processor(tokenizer=AsciiTokenizer(broken=66))
    processor.process(EngineOutput("r", tuple(b"ok")))
    (event,) = processor.process(EngineOutput("r", (66,)))
    assert isinstance(event.error, DetokenizeFailed) and event.finish_reason == "error"
    assert processor.pending_aborts == [0]
    assert processor.result().outputs[0].text == "ok"


def test_logprobs_follow_the_tokens_that_count() -> None:
    processor = make_processor(stop="b", logprobs=1)
    entries = tuple(TokenLogprob(token, -0.5) for token in b"abc")
    processor.process(EngineOutput("r", tuple(b"abc"), entries))
    assert [entry.token_id for entry in processor.result().outputs[0].token_logprobs or ()] == list(b"ab")


def test_without_a_tokenizer_there_are_ids_and_no_text() -> None:
    processor = make_processor(bare=True)
    for output in outputs([b"ab", b"c"], FinishReason.LENGTH):
        processor.process(output)
    choice = processor.result().outputs[0]
    assert (choice.text, choice.token_ids) == ("", list(b"abc"))


# -- several choices ---------------------------------------------------------------------------------------------------


def test_each_choice_has_its_own_text_and_end() -> None:
    processor = make_processor(n=2, stop="!")
    events = [
        event
        for output in (
            EngineOutput("r", tuple(b"ab"), choice_index=1), EngineOutput("r", tuple(b"x")),
            EngineOutput("r", tuple(b"c!d"), choice_index=1),
            EngineOutput("r", tuple(b"zz"), choice_index=1),
            EngineOutput("r", (), finish_reason=FinishReason.ABORT, choice_index=1),
            EngineOutput("r", tuple(b"y"), finish_reason=FinishReason.LENGTH, usage=Usage(3, 9, 1)),
        )
        for event in processor.process(output)
    ]  # fmt: skip
    assert [(event.index, event.delta, event.finish_reason) for event in events] == [
        (1, "ab", None), (0, "x", None), (1, "c", "stop"), (0, "y", "length"),
    ]  # fmt: skip
    assert processor.pending_aborts == [1] and events[-1].usage == Usage(3, 6, 1)
    assert [choice.text for choice in processor.result().outputs] == ["xy", "abc"]


def test_an_error_ends_all_choices_that_are_open() -> None:
    processor, error = make_processor(n=3), EngineDead("gone")
    processor.process(EngineOutput("r", tuple(b"a"), finish_reason=FinishReason.LENGTH, choice_index=1))
    events = processor.process(EngineOutput.failed(processor.request, error))
    assert [(event.index, event.error) for event in events] == [(0, error), (2, error)]
    assert [event.is_final for event in events] == [False, True]
    result = processor.result()
    assert [choice.finish_reason for choice in result.outputs] == ["error", "length", "error"]
    assert result.error is error


def test_an_error_is_reported_when_its_choice_has_ended() -> None:
    processor, error = make_processor(n=2), EngineDead("gone")
    processor.process(EngineOutput("r", tuple(b"a"), finish_reason=FinishReason.LENGTH))
    events = processor.process(EngineOutput.failed(processor.request, error))
    assert [(event.index, event.finish_reason, event.error) for event in events] == [(1, "error", error)]
    assert processor.result().error is error


def test_an_error_is_reported_with_best_of() -> None:
    processor, error = make_processor(n=1, best_of=2, logprobs=0), EngineDead("gone")
    ids, entries = with_logprobs(b"whole", -1.0)
    assert processor.process(EngineOutput("r", ids, entries, FinishReason.LENGTH)) == []
    (event,) = processor.process(EngineOutput.failed(processor.request, error))
    assert (event.finish_reason, event.error, event.is_final) == ("error", error, True)
    result = processor.result()
    assert result.error is error and result.outputs[0].finish_reason == "error"


def test_the_text_of_one_choice_that_cannot_be_made_ends_them_all() -> None:
    processor = make_processor(n=2, tokenizer=AsciiTokenizer(broken=66))
    events = processor.process(EngineOutput("r", (66,), choice_index=1))
    assert [event.finish_reason for event in events] == ["error", "error"] and processor.is_finished
    assert sorted(processor.pending_aborts) == [0, 1]


def with_logprobs(text: bytes, logprob: float) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
    return tuple(text), tuple(TokenLogprob(token, logprob) for token in text)


@pytest.mark.parametrize("logprobs", [None, 0])
def test_of_many_drawn_the_likeliest_come_back_when_all_have_ended(logprobs: int | None) -> None:
    processor = make_processor(n=2, best_of=4, logprobs=logprobs)
    events = []
    for index, (text, logprob) in enumerate([(b"worst", -9.0), (b"good", -1.0), (b"bad", -5.0), (b"best", -0.1)]):
        ids, entries = with_logprobs(text, logprob)
        usage = Usage(3, 16, 0) if index == 3 else None
        events += processor.process(
            EngineOutput("r", ids, entries, FinishReason.LENGTH, choice_index=index, usage=usage)
        )
        assert bool(events) == (index == 3)
    assert [(event.index, event.delta) for event in events] == [(0, "best"), (1, "good")]
    assert events[-1].usage == Usage(3, 16, 0)
    result = processor.result()
    assert [(choice.index, choice.text) for choice in result.outputs] == [(0, "best"), (1, "good")]
    assert all((choice.token_logprobs is None) == (logprobs is None) for choice in result.outputs)


# -- echo, scores, resume ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "text"), [("the prompt: ", "the prompt: ok"), (None, "\x01\x02\x03ok")])
def test_an_echo_is_the_prompt_before_the_output(prompt: str | None, text: str) -> None:
    processor = make_processor(prompt=prompt, echo=True, n=2)
    events = processor.process(EngineOutput("r", tuple(b"o")))
    events += processor.process(EngineOutput("r", tuple(b"k"), finish_reason=FinishReason.LENGTH))
    assert "".join(event.delta for event in events) == text
    processor.process(EngineOutput("r", (), finish_reason=FinishReason.LENGTH, choice_index=1, usage=Usage(3, 2, 0)))
    result = processor.result()
    assert [choice.text for choice in result.outputs] == [text, text.removesuffix("ok")]
    assert result.outputs[0].token_ids == list(b"ok")


def test_each_choice_reports_all_scores_of_the_prompt() -> None:
    processor = make_processor(prompt_logprobs=0, n=2, echo=True)
    entries = (TokenLogprob(2, -0.5), TokenLogprob(3, -0.25))
    events = processor.process(EngineOutput("r", prompt_logprobs=entries[:1]))
    events += processor.process(EngineOutput("r", tuple(b"o"), prompt_logprobs=entries[1:]))
    for _ in range(2):
        events += processor.process(EngineOutput("r", tuple(b"k"), choice_index=1))
    assert [(event.index, event.prompt_logprobs) for event in events] == [
        (0, entries[:1]), (0, entries[1:]), (1, entries), (1, ()),
    ]  # fmt: skip


def test_a_request_with_a_choice_that_starts_anew_has_scores_of_the_prompt() -> None:
    for resume, expected in (((b"x", b""), [None, TokenLogprob(2, -0.5)]), ((b"x", b"y"), None)):
        processor = make_processor(prompt_logprobs=0, n=2, echo=True, resume=resume)
        processor.process(EngineOutput("r", tuple(b"k"), choice_index=1, prompt_logprobs=(TokenLogprob(2, -0.5),)))
        for index in (0, 1):
            processor.process(EngineOutput("r", (), finish_reason=FinishReason.LENGTH, choice_index=index))
        assert processor.result().prompt_token_logprobs == expected


def test_scores_of_the_prompt_come_in_pieces_and_the_first_token_has_none() -> None:
    processor = make_processor(prompt_logprobs=0, max_tokens=0, echo=True)
    entries = (TokenLogprob(2, -0.5), TokenLogprob(3, -0.25))
    events = processor.process(EngineOutput("r", prompt_logprobs=entries[:1]))
    last = EngineOutput(
        "r", (65,), finish_reason=FinishReason.LENGTH, usage=Usage(3, 1, 0), prompt_logprobs=entries[1:]
    )
    events += processor.process(last)
    assert [event.prompt_logprobs for event in events] == [entries[:1], entries[1:]]
    result = processor.result()
    assert result.prompt_token_logprobs == [None, *entries]
    assert (result.outputs[0].text, result.outputs[0].token_ids, result.usage) == ("prompt", [], Usage(3, 0, 0))
    assert result.outputs[0].finish_reason == "length"


@for_each("cut", range(12))
def test_a_resumed_text_is_what_was_not_said_before(cut: int) -> None:
    output_bytes, stop = "ab中!stoc stop x".encode(), "stop"
    processor, first = make_processor(stop=stop), make_processor(stop=stop)
    expected = [event for token in output_bytes for event in processor.process(EngineOutput("r", (token,)))]
    before = [event.delta for token in output_bytes[:cut] for event in first.process(EngineOutput("r", (token,)))]
    resumed = make_processor(stop=stop, resume=(output_bytes[:cut],))
    after = [event for token in output_bytes[cut:] for event in resumed.process(EngineOutput("r", (token,)))]
    assert "".join(before) + "".join(event.delta for event in after) == "".join(event.delta for event in expected)
    assert resumed.result().outputs == processor.result().outputs
    assert resumed.result().usage == processor.result().usage


def test_a_choice_that_had_met_its_stop_string_is_ended_here_and_not_said_again() -> None:
    processor = make_processor(n=2, stop="!", resume=(b"ab!", b"x"))
    assert processor.pending_aborts == [0]
    events = processor.process(EngineOutput("r", (), finish_reason=FinishReason.ABORT))
    assert [(event.index, event.delta, event.finish_reason) for event in events] == [(0, "", "stop")]
    processor.process(
        EngineOutput("r", tuple(b"y"), finish_reason=FinishReason.LENGTH, choice_index=1, usage=Usage(3, 5, 0))
    )
    assert [choice.text for choice in processor.result().outputs] == ["ab", "xy"]


def test_text_that_is_held_back_stays_so_at_an_error() -> None:
    """The stream may be resumed from its tokens elsewhere, and the text would come twice."""
    for last, expected in ((FinishReason.ERROR, "a"), (FinishReason.LENGTH, "a!st")):
        processor = make_processor(stop="!stop")
        events = [*processor.process(EngineOutput("r", tuple(b"a!s")))]
        error = EngineDead("the engine failed") if last is FinishReason.ERROR else None
        events += processor.process(EngineOutput("r", tuple(b"t"), (), last, error, Usage(3, 4, 0)))
        assert "".join(event.delta for event in events) == expected


def test_an_echo_is_not_said_again() -> None:
    processor = make_processor(echo=True, resume=(b"a",))
    (event,) = processor.process(
        EngineOutput("r", tuple(b"b"), finish_reason=FinishReason.LENGTH, usage=Usage(3, 2, 0))
    )
    assert event.delta == "b" and processor.result().outputs[0].text == "promptab"
