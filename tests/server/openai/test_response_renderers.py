"""response.py: metadata, usage and chat responses match OpenAI's response types."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from chairlift import __version__
from chairlift.core.engine_output import FinishReason, Usage
from chairlift.llm.text_event import TextEvent
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.response_renderers import ChatRenderer, ResponseMeta, total, usage_object
from support_responses import (
    EXTENSIONS,
    LENGTH,
    META,
    NUM_PROMPT_TOKENS,
    STOP,
    TOOL_CALL,
    chat_renderer,
    chat_request,
    check_type,
    chunks_of,
    completion_renderer,
    completion_request,
    events_of,
    logprobs_of,
    only_choice,
    render_chunks,
    result_of,
)
from support_shares import for_each

# -- metadata and usage ------------------------------------------------------------------------------------------------


def test_an_answer_is_named_after_its_request() -> None:
    meta = ResponseMeta.of("chatcmpl", "abc", "demo")
    assert (meta.id, meta.model) == ("chatcmpl-abc", "demo")
    assert 1_700_000_000 < meta.created < 2**40 and type(meta.created) is int
    assert META.envelope("thing") == {
        "id": "chatcmpl-r", "object": "thing", "created": 1_700_000_000, "model": "demo",
        "system_fingerprint": f"chairlift-{__version__}",
    }  # fmt: skip


def test_counts_add_up() -> None:
    usage = total(iter([Usage(1, 2, 0), Usage(10, 20, 5)]))
    assert usage == Usage(11, 22, 5)
    assert usage_object(usage) == {
        "prompt_tokens": 11, "completion_tokens": 22, "total_tokens": 33,
        "prompt_tokens_details": {"cached_tokens": 5},
    }  # fmt: skip
    assert total([]) == Usage(0, 0, 0)
    assert total([Usage(1, 2, 0, 3, 4), Usage(1, 2, 0), Usage(1, 2, 0, 10, 20)]) == Usage(3, 6, 0, 13, 24)


def test_only_a_request_with_a_prediction_has_the_counts_of_its_tokens() -> None:
    usage = Usage(1, 2, 0, 5, 7)
    assert "completion_tokens_details" not in usage_object(usage)
    details = usage_object(usage, has_prediction=True)["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 7}


def test_a_models_name_cannot_break_a_chunk() -> None:
    meta = ResponseMeta("c", 'a"\n\nb: ü\\', 1)
    (chunk,) = chunks_of(ChatRenderer(chat_request(), meta, None, [ChatDeltaBuilder()]).usage(Usage(1, 1, 0)))
    assert chunk["model"] == 'a"\n\nb: ü\\'


# -- chats -------------------------------------------------------------------------------------------------------------


@for_each(
    ("more", "text", "extensions"),
    [
        ({}, "Hello.", set()),
        ({}, "", set()),
        ({"logprobs": True, "top_logprobs": 2}, "Hello.", set()),
        ({"return_token_ids": True}, "Hello.", {"token_ids", "prompt_token_ids"}),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, TOOL_CALL, set()),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, f"So: {TOOL_CALL}", set()),
    ],
)
def test_a_whole_chat_is_of_openais_type(more: dict[str, Any], text: str, extensions: set[str]) -> None:
    body = chat_renderer(chat_request(**more)).full_response([result_of(text)])
    check_type(ChatCompletion, body, extensions)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == ("tool_calls" if TOOL_CALL in text else "stop")
    assert (choice["logprobs"] is None) == ("logprobs" not in more)
    assert body["usage"]["completion_tokens"] == len(text)


def test_reasoning_is_a_field_of_ours() -> None:
    body = chat_renderer(chat_request(), is_reasoning=True).full_response([result_of("<think>Well.</think>Yes.")])
    check_type(ChatCompletion, body, {"reasoning_content"})
    assert body["choices"][0]["message"] == {
        "role": "assistant", "content": "Yes.", "refusal": None, "reasoning_content": "Well.",
    }  # fmt: skip


def test_choices_of_a_chat_are_distinguished() -> None:
    body = chat_renderer(chat_request(n=3)).full_response([result_of("a", "bb", "", reason=LENGTH)])
    check_type(ChatCompletion, body, set())
    choices = [(choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in body["choices"]]
    assert choices == [(0, "a", "length"), (1, "bb", "length"), (2, "", "length")]


def test_ids_of_a_whole_chat() -> None:
    body = chat_renderer(chat_request(return_token_ids=True)).full_response([result_of("ab")])
    assert body["prompt_token_ids"] == [120, 121]
    assert body["choices"][0]["token_ids"] == [97, 98]


@pytest.mark.parametrize(
    ("more", "text", "extensions"),
    [
        ({}, "Hello.", set()),
        ({"logprobs": True}, "Hello.", set()),
        ({"return_token_ids": True}, "Hello.", {"token_ids", "position"}),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, f"So: {TOOL_CALL}", set()),
        ({"stream_options": {"include_usage": True}}, "Hello.", set()),
    ],
)
def test_every_chunk_of_a_chat_is_of_openais_type(more: dict[str, Any], text: str, extensions: set[str]) -> None:
    renderer = chat_renderer(chat_request(stream=True, **more))
    chunks = render_chunks(renderer, events_of(text, range(2, len(text), 3), num_held_chars=1))
    result: set[str] = set()
    for chunk in chunks:
        present = EXTENSIONS & {*only_choice(chunk), *only_choice(chunk)["delta"]}
        check_type(ChatCompletionChunk, chunk, present)
        result |= present
        assert {**chunk, "choices": 0} == {
            **META.envelope("chat.completion.chunk"), "choices": 0,
            **({"usage": None} if "stream_options" in more else {}),
        }  # fmt: skip
    assert result == extensions
    first_text = text[:2][:-1] if "return_token_ids" in more else ""  # with token ids an output is one chunk
    assert only_choice(chunks[0])["delta"] == {"role": "assistant", "content": first_text}
    assert not any("role" in only_choice(chunk)["delta"] for chunk in chunks[1:])
    reasons = [only_choice(chunk)["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["tool_calls" if TOOL_CALL in text else "stop"]


def test_the_last_chunk_has_the_counts_and_no_choice() -> None:
    for renderer, model_type in (
        (chat_renderer(chat_request(stream=True, stream_options={"include_usage": True})), ChatCompletionChunk),
        (completion_renderer(completion_request(stream=True, stream_options={"include_usage": True})), Completion),
    ):
        (chunk,) = chunks_of(renderer.usage(Usage(3, 4, 2)))
        check_type(model_type, chunk, set())
        assert (chunk["choices"], chunk["usage"]) == ([], usage_object(Usage(3, 4, 2)))


def collect_choices(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Put the choices of a chat together from its chunks, as a client does."""
    result: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        choice = only_choice(chunk)
        record = result.setdefault(choice["index"], {
            "content": "", "reasoning": "", "calls": [], "token_ids": [], "logprobs": [], "reason": None,
        })  # fmt: skip
        assert record["reason"] is None, "no chunk of a choice follows its last one"
        delta = choice["delta"]
        record["content"] += delta.get("content", "")
        record["reasoning"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                record["calls"].append(dict(call["function"]))
            else:
                record["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        if "token_ids" in choice:
            assert choice["position"] == len(record["token_ids"]), "positions continue after the last ids"
            record["token_ids"] += choice["token_ids"]
        if choice["logprobs"] is not None:
            record["logprobs"] += choice["logprobs"]["content"]
        record["reason"] = choice["finish_reason"]
    return result


PARTS = st.lists(
    st.sampled_from([TOOL_CALL, "<think>", "</think>", "<tool_", "Hello", " ", "\n", "{", "<", "a"]), max_size=6
)


@given(PARTS.map("".join), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 3), st.booleans(), st.booleans(),
       st.sampled_from([STOP, LENGTH]))  # fmt: skip
def test_a_streamed_chat_says_what_the_whole_one_does(
    text: str, cuts: list[int], num_held_chars: int, is_reasoning: bool, ids: bool, reason: FinishReason
) -> None:
    """Text, calls, ids, logprobs and reason are the same, wherever the text is cut."""
    request = chat_request(n=2, logprobs=True, top_logprobs=1, return_token_ids=ids, tools=[
        {"type": "function", "function": {"name": "f"}}])  # fmt: skip
    cuts = [min(cut, len(text)) for cut in cuts]
    renderer = chat_renderer(request, is_reasoning=is_reasoning)
    other = iter(events_of("other", (2,), index=1))
    chunks: list[dict[str, Any]] = []
    for event in events_of(text, cuts, num_held_chars=num_held_chars, reason=reason):
        chunks += render_chunks(renderer, iter([event, *([between] if (between := next(other, None)) else [])]))
    chunks += render_chunks(renderer, other)
    result = collect_choices(chunks)
    response = chat_renderer(request, is_reasoning=is_reasoning).full_response([result_of(text, reason=reason)])
    full = response["choices"][0]
    message = full["message"]
    assert result[0] == {
        "content": message["content"] or "", "reasoning": message.get("reasoning_content", ""),
        "calls": [call["function"] for call in message.get("tool_calls", [])],
        "token_ids": full["token_ids"] if ids else [], "logprobs": full["logprobs"]["content"],
        "reason": full["finish_reason"],
    }  # fmt: skip
    assert (result[1]["content"], result[1]["reason"]) == ("other", "stop")


def test_a_stream_that_is_resumed_goes_on_counting() -> None:
    request = chat_request(stream=True, n=2, return_token_ids=True, resume=[[7, 8, 9]])
    renderer = chat_renderer(request)
    first = render_chunks(renderer, events_of("ab", (1,), index=0))
    second = render_chunks(renderer, events_of("ab", (1,), index=1))
    assert [only_choice(chunk)["position"] for chunk in first if "position" in only_choice(chunk)] == [3, 4]
    assert [only_choice(chunk)["position"] for chunk in second if "position" in only_choice(chunk)] == [0, 1]


COUNTED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize("more", [{}, {"return_token_ids": True}])
@pytest.mark.parametrize("is_chat", [True, False])
def test_each_chunk_has_the_counts_of_all_choices_so_far(is_chat: bool, more: dict[str, Any]) -> None:
    options = {**COUNTED, **more, "n": 2, "resume": [[7, 8, 9]]}
    renderer = chat_renderer(chat_request(**options)) if is_chat else completion_renderer(completion_request(**options))
    silent = TextEvent("r", "", (200,), index=1)  # the beginning of a character
    events = [
        TextEvent("r", "a", (97,)), silent, TextEvent("r", "b", (98, 99), index=1),
        TextEvent("r", "c", (99,), finish_reason=STOP),
    ]  # fmt: skip
    chunks = [chunk for event in events for chunk in chunks_of(renderer.event(0, event))]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert list(dict.fromkeys(counts))[-2:] == [7, 8] and counts[0] == 4 and counts == sorted(counts)
    for usage in (chunk["usage"] for chunk in chunks):
        assert usage["prompt_tokens"] == NUM_PROMPT_TOKENS
        assert usage["total_tokens"] == NUM_PROMPT_TOKENS + usage["completion_tokens"]


def test_tokens_without_text_yet_are_sent_where_the_client_counts_them() -> None:
    silent = TextEvent("r", "", (200,), logprobs_of((200,)))
    for more, is_sent in (({}, False), ({"return_token_ids": True}, True), ({"logprobs": True}, True)):
        renderer = chat_renderer(chat_request(stream=True, **more))
        renderer.event(0, TextEvent("r", "a", (97,), logprobs_of((97,))))
        chunks = chunks_of(renderer.event(0, silent))
        assert [only_choice(chunk)["delta"] for chunk in chunks] == ([{}] if is_sent else [])
        assert not renderer.event(0, TextEvent("r")), "an event without output makes no chunk"


TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_an_output_is_one_chunk_where_the_client_counts_its_tokens() -> None:
    """A stream that is cut between two chunks can then be resumed from the tokens of the chunks that came."""
    renderer = chat_renderer(chat_request(stream=True, return_token_ids=True, tools=TOOLS))
    (chunk,) = chunks_of(renderer.event(0, TextEvent("r", f"So {TOOL_CALL}", (7, 8), finish_reason=STOP)))
    choice = only_choice(chunk)
    (part,) = choice["delta"].pop("tool_calls")
    assert choice["delta"] == {"role": "assistant", "content": "So "}
    assert part["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert (choice["token_ids"], choice["finish_reason"]) == ([7, 8], "tool_calls")


def test_an_end_that_was_delivered_is_repeated_without_text() -> None:
    for finish_reason, delta in ((STOP, {}), (LENGTH, {}), (FinishReason.ABORT, {"content": "<tool_"})):
        renderer = chat_renderer(chat_request(stream=True, return_token_ids=True, resume=[[7]], tools=TOOLS))
        renderer._builders[0].push("<tool_")
        (chunk,) = chunks_of(renderer.event(0, TextEvent("r", "", (), finish_reason=finish_reason)))
        assert only_choice(chunk)["delta"] == delta and only_choice(chunk)["finish_reason"] == str(finish_reason)


@for_each("stop_reason", ["END", 7, None])
@for_each("ids", [False, True])
def test_a_choice_has_the_stop_string_or_token_that_ended_it(stop_reason: str | int | None, ids: bool) -> None:
    expected = {} if stop_reason is None else {"stop_reason": stop_reason}
    result = result_of("ab")
    result.outputs[0].stop_reason = stop_reason
    last = TextEvent("r", "ab", (7,), finish_reason=STOP, stop_reason=stop_reason)
    for renderer in (
        chat_renderer(chat_request(stream=True, return_token_ids=ids)),
        completion_renderer(completion_request(stream=True, return_token_ids=ids)),
    ):
        (choice,) = renderer.full_response([result])["choices"]
        assert {name: value for name, value in choice.items() if name == "stop_reason"} == expected
        *chunks, end = chunks_of(renderer.event(0, last))
        assert not any("stop_reason" in only_choice(chunk) for chunk in chunks)
        assert {name: value for name, value in only_choice(end).items() if name == "stop_reason"} == expected


def test_the_end_of_a_choice_is_sent_even_without_text() -> None:
    renderer = chat_renderer(chat_request(stream=True))
    assert len(chunks_of(renderer.event(0, TextEvent("r", "a", (97,))))) == 2
    (chunk,) = chunks_of(renderer.event(0, TextEvent("r", "", (2,), finish_reason=STOP)))
    assert (only_choice(chunk)["delta"], only_choice(chunk)["finish_reason"]) == ({}, "stop")


def test_a_chat_that_says_nothing_at_all_still_begins_and_ends() -> None:
    chunks = chunks_of(chat_renderer(chat_request(stream=True)).event(0, TextEvent("r", "", (2,), finish_reason=STOP)))
    assert only_choice(chunks[0])["delta"] == {"role": "assistant", "content": ""}
    assert only_choice(chunks[-1])["finish_reason"] == "stop"
