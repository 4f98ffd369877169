"""response.py: full responses and streams match OpenAI's response types, and have the same content."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, ValidationError

from chairlift import __version__
from chairlift.core.request import FinishReason, TokenLogprob, Usage
from chairlift.llm.outputs import CompletionOutput, RequestOutput, TextEvent
from chairlift.protocol.sse import EventReader
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.logprobs import ChatLogprobs, CompletionLogprobs
from chairlift.server.openai.parse_request import ChatRequest, CompletionRequest, read_chat, read_completion
from chairlift.server.openai.response import ChatRenderer, CompletionRenderer, ResponseMeta, total, usage_object
from chairlift.text.reasoning_parser import ReasoningParser
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tokenizer import ByteTokenizer
from chairlift.text.tool_parser import HERMES, ToolCallParser

NAMED = ResponseMeta("chatcmpl-r", "demo", 1_700_000_000)
PIECES = TokenPieces(ByteTokenizer())
F = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
OURS = {"token_ids", "position", "prompt_token_ids", "reasoning_content"}
"""Fields that OpenAI's types do not have."""

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def extras(model: BaseModel) -> set[str]:
    """Return the names of all fields, at any depth, that the type does not have."""
    result = set(model.model_extra or {})
    for value in vars(model).values():
        for each in value if isinstance(value, list) else [value]:
            result |= extras(each) if isinstance(each, BaseModel) else set()
    return result


def check(kind: type[BaseModel], body: dict[str, Any], ours: set[str], untyped: Sequence[str] = ()) -> None:
    """An answer is strictly of OpenAI's type but for our own fields; `untyped` are nulls that it does not tell of."""
    try:
        read = kind.model_validate_json(json.dumps(body, allow_nan=False), strict=True)
    except ValidationError as error:
        wrong = [(".".join(map(str, each["loc"])), each["input"]) for each in error.errors()]
        assert wrong and wrong == [(name, None) for name in untyped], wrong
    else:
        assert not untyped, "the type has changed"
        assert extras(read) == ours


def chat_request(**more: Any) -> ChatRequest:
    return read_chat({"model": "demo", "messages": [{"role": "user", "content": "x"}], **more}, HERMES)


def completion_request(**more: Any) -> CompletionRequest:
    return read_completion({"model": "demo", "prompt": "x", **more})


def chat_renderer(wanted: ChatRequest, *, thinks: bool = False) -> ChatRenderer:
    scores = ChatLogprobs(PIECES, wanted.params.logprobs or 0) if wanted.logprobs else None
    delta_builders = [
        ChatDeltaBuilder(
            None if wanted.tools is None else ToolCallParser(HERMES), ReasoningParser(inside=False) if thinks else None
        )
        for _ in range(wanted.params.n)
    ]
    return ChatRenderer(wanted, NAMED, scores, delta_builders)


def renderer(wanted: CompletionRequest, prompt: Sequence[int] = (120, 121)) -> CompletionRenderer:
    top, params = wanted.params.logprobs, wanted.params
    scores = None if top is None else [
        CompletionLogprobs(PIECES, prompt if params.echo else None, top) for _ in range(params.n * len(wanted.prompts))
    ]  # fmt: skip
    return CompletionRenderer(wanted, NAMED, scores)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def scored(token_ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token, -0.5, ((token, -0.5), (66, -1.0))) for token in token_ids)


def events_of(text: str, cuts: Sequence[int] = (), *, index: int = 0, reason: FinishReason = STOP,
              held: int = 0, logprobs: bool = True) -> Iterator[TextEvent]:  # fmt: skip
    """Stream a text of one-byte characters cut there; the last `held` characters of a piece come with the next one."""
    places = [0, *sorted(cuts), len(text)]
    choices = 0
    for number, (start, end) in enumerate(pairwise(places)):
        last = number == len(places) - 2
        upto = end if last else max(choices, end - held)
        new = ids_of(text[start:end])
        yield TextEvent(
            "r", text[choices:upto], new, scored(new) if logprobs else (), reason if last else None, index=index,
            usage=Usage(3, len(text), 1) if last else None,
        )  # fmt: skip
        choices = upto


def result_of(
    *texts: str, reason: FinishReason = STOP, prompt: tuple[int, ...] = (120, 121), echo: str | None = None
) -> RequestOutput:  # fmt: skip
    outputs = [
        CompletionOutput(index, (echo or "") + text, list(ids_of(text)), list(scored(ids_of(text))), reason)
        for index, text in enumerate(texts)
    ]
    prompt_logprobs = None if echo is None else [None, *scored(prompt[1:])]
    usage = Usage(len(prompt), sum(map(len, texts)), 1)
    return RequestOutput("r", "xy", list(prompt), outputs, usage, prompt_logprobs=prompt_logprobs)


def chunks_of(sent: bytes) -> list[dict[str, Any]]:
    """Read what was sent; every event is one line of data."""
    return [json.loads(event.data) for event in EventReader().push(sent) if not event.event]


def streamed(
    made: ChatRenderer | CompletionRenderer, events: Iterator[TextEvent], number: int = 0
) -> list[dict[str, Any]]:
    return [chunk for event in events for chunk in chunks_of(made.event(number, event))]


def only(chunk: dict[str, Any]) -> dict[str, Any]:
    (choice,) = chunk["choices"]
    result: dict[str, Any] = choice
    return result


# -- what is around the choices ----------------------------------------------------------------------------------------


def test_an_answer_is_named_after_its_request() -> None:
    named = ResponseMeta.of("chatcmpl", "abc", "demo")
    assert (named.id, named.model) == ("chatcmpl-abc", "demo")
    assert 1_700_000_000 < named.created < 2**40 and type(named.created) is int
    assert NAMED.envelope("thing") == {
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


def test_a_models_name_cannot_break_a_chunk() -> None:
    named = ResponseMeta("c", 'a"\n\nb: ü\\', 1)
    (chunk,) = chunks_of(ChatRenderer(chat_request(), named, None, [ChatDeltaBuilder()]).usage(Usage(1, 1, 0)))
    assert chunk["model"] == 'a"\n\nb: ü\\'


# -- chats -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "text", "ours"),
    [
        ({}, "Hello.", set()),
        ({}, "", set()),
        ({"logprobs": True, "top_logprobs": 2}, "Hello.", set()),
        ({"return_token_ids": True}, "Hello.", {"token_ids", "prompt_token_ids"}),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, F, set()),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, f"So: {F}", set()),
    ],
)
def test_a_whole_chat_is_of_openais_type(more: dict[str, Any], text: str, ours: set[str]) -> None:
    body = chat_renderer(chat_request(**more)).full_response([result_of(text)])
    check(ChatCompletion, body, ours)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == ("tool_calls" if F in text else "stop")
    assert (choice["logprobs"] is None) == ("logprobs" not in more)
    assert body["usage"]["completion_tokens"] == len(text)


def test_reasoning_is_a_field_of_ours() -> None:
    body = chat_renderer(chat_request(), thinks=True).full_response([result_of("<think>Well.</think>Yes.")])
    check(ChatCompletion, body, {"reasoning_content"})
    assert body["choices"][0]["message"] == {
        "role": "assistant", "content": "Yes.", "refusal": None, "reasoning_content": "Well.",
    }  # fmt: skip


def test_choices_of_a_chat_are_distinguished() -> None:
    body = chat_renderer(chat_request(n=3)).full_response([result_of("a", "bb", "", reason=LENGTH)])
    check(ChatCompletion, body, set())
    choices = [(choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in body["choices"]]
    assert choices == [(0, "a", "length"), (1, "bb", "length"), (2, "", "length")]


def test_ids_of_a_whole_chat() -> None:
    body = chat_renderer(chat_request(return_token_ids=True)).full_response([result_of("ab")])
    assert body["prompt_token_ids"] == [120, 121]
    assert body["choices"][0]["token_ids"] == [97, 98]


@pytest.mark.parametrize(
    ("more", "text", "ours"),
    [
        ({}, "Hello.", set()),
        ({"logprobs": True}, "Hello.", set()),
        ({"return_token_ids": True}, "Hello.", {"token_ids", "position"}),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, f"So: {F}", set()),
        ({"stream_options": {"include_usage": True}}, "Hello.", set()),
    ],
)
def test_every_chunk_of_a_chat_is_of_openais_type(more: dict[str, Any], text: str, ours: set[str]) -> None:
    made = chat_renderer(chat_request(stream=True, **more))
    chunks = streamed(made, events_of(text, range(2, len(text), 3), held=1))
    result: set[str] = set()
    for chunk in chunks:
        here = OURS & {*only(chunk), *only(chunk)["delta"]}
        check(ChatCompletionChunk, chunk, here)
        result |= here
        assert {**chunk, "choices": 0} == {
            **NAMED.envelope("chat.completion.chunk"), "choices": 0,
            **({"usage": None} if "stream_options" in more else {}),
        }  # fmt: skip
    assert result == ours
    assert only(chunks[0])["delta"] == {"role": "assistant", "content": ""}
    assert not any("role" in only(chunk)["delta"] for chunk in chunks[1:])
    reasons = [only(chunk)["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["tool_calls" if F in text else "stop"]


def test_the_last_chunk_has_the_counts_and_no_choice() -> None:
    for made, kind in (
        (chat_renderer(chat_request(stream=True, stream_options={"include_usage": True})), ChatCompletionChunk),
        (renderer(completion_request(stream=True, stream_options={"include_usage": True})), Completion),
    ):
        (chunk,) = chunks_of(made.usage(Usage(3, 4, 2)))
        check(kind, chunk, set())
        assert (chunk["choices"], chunk["usage"]) == ([], usage_object(Usage(3, 4, 2)))


def collected(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Do what a client does with the chunks of a chat."""
    result: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        choice = only(chunk)
        one = result.setdefault(choice["index"], {
            "content": "", "reasoning": "", "calls": [], "token_ids": [], "scores": [], "reason": None,
        })  # fmt: skip
        assert one["reason"] is None, "nothing comes behind the end"
        delta = choice["delta"]
        one["content"] += delta.get("content", "")
        one["reasoning"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                one["calls"].append(dict(call["function"]))
            else:
                one["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        if "token_ids" in choice:
            assert choice["position"] == len(one["token_ids"]), "positions go on where the last ids ended"
            one["token_ids"] += choice["token_ids"]
        if choice["logprobs"] is not None:
            one["scores"] += choice["logprobs"]["content"]
        one["reason"] = choice["finish_reason"]
    return result


PARTS = st.lists(st.sampled_from([F, "<think>", "</think>", "<tool_", "Hello", " ", "\n", "{", "<", "a"]), max_size=6)


@given(PARTS.map("".join), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 3), st.booleans(), st.booleans(),
       st.sampled_from([STOP, LENGTH]))  # fmt: skip
def test_a_streamed_chat_says_what_the_whole_one_does(
    text: str, cuts: list[int], held: int, thinks: bool, ids: bool, reason: FinishReason
) -> None:
    """Text, reasoning, calls, ids, scores and reason, however the text is cut, with choices between each other."""
    wanted = chat_request(n=2, logprobs=True, top_logprobs=1, return_token_ids=ids, tools=[
        {"type": "function", "function": {"name": "f"}}])  # fmt: skip
    cuts = [min(cut, len(text)) for cut in cuts]
    made = chat_renderer(wanted, thinks=thinks)
    other = iter(events_of("other", (2,), index=1))
    chunks: list[dict[str, Any]] = []
    for event in events_of(text, cuts, held=held, reason=reason):
        chunks += streamed(made, iter([event, *([between] if (between := next(other, None)) else [])]))
    chunks += streamed(made, other)
    result = collected(chunks)
    whole = chat_renderer(wanted, thinks=thinks).full_response([result_of(text, reason=reason)])["choices"][0]
    message = whole["message"]
    assert result[0] == {
        "content": message["content"] or "", "reasoning": message.get("reasoning_content", ""),
        "calls": [call["function"] for call in message.get("tool_calls", [])],
        "token_ids": whole["token_ids"] if ids else [], "scores": whole["logprobs"]["content"],
        "reason": whole["finish_reason"],
    }  # fmt: skip
    assert (result[1]["content"], result[1]["reason"]) == ("other", "stop")


def test_a_stream_that_is_resumed_goes_on_counting() -> None:
    wanted = chat_request(stream=True, n=2, return_token_ids=True, resume=[[7, 8, 9]])
    made = chat_renderer(wanted)
    first = streamed(made, events_of("ab", (1,), index=0))
    second = streamed(made, events_of("ab", (1,), index=1))
    assert [only(chunk)["position"] for chunk in first if "position" in only(chunk)] == [3, 4]
    assert [only(chunk)["position"] for chunk in second if "position" in only(chunk)] == [0, 1]


def test_tokens_without_text_yet_are_sent_where_the_client_counts_them() -> None:
    silent = TextEvent("r", "", (200,), scored((200,)))
    for more, tells in (({}, False), ({"return_token_ids": True}, True), ({"logprobs": True}, True)):
        made = chat_renderer(chat_request(stream=True, **more))
        made.event(0, TextEvent("r", "a", (97,), scored((97,))))
        chunks = chunks_of(made.event(0, silent))
        assert [only(chunk)["delta"] for chunk in chunks] == ([{}] if tells else [])
        assert not made.event(0, TextEvent("r")), "no news, no chunk"


def test_the_end_of_a_choice_is_sent_even_without_text() -> None:
    made = chat_renderer(chat_request(stream=True))
    assert len(chunks_of(made.event(0, TextEvent("r", "a", (97,))))) == 2
    (chunk,) = chunks_of(made.event(0, TextEvent("r", "", (2,), finish_reason=STOP)))
    assert (only(chunk)["delta"], only(chunk)["finish_reason"]) == ({}, "stop")


def test_a_chat_that_says_nothing_at_all_still_begins_and_ends() -> None:
    chunks = chunks_of(chat_renderer(chat_request(stream=True)).event(0, TextEvent("r", "", (2,), finish_reason=STOP)))
    assert only(chunks[0])["delta"] == {"role": "assistant", "content": ""}
    assert only(chunks[-1])["finish_reason"] == "stop"


# -- completions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "ours", "untyped"),
    [
        ({}, set(), ()),
        ({"logprobs": 2}, set(), ()),
        ({"return_token_ids": True}, {"token_ids", "prompt_token_ids"}, ()),
        # OpenAI itself sends null for the first token, of which its type knows nothing
        ({"logprobs": 2, "echo": True}, set(),
         ("choices.0.logprobs.token_logprobs.0", "choices.0.logprobs.top_logprobs.0")),
    ],
)  # fmt: skip
def test_a_whole_completion_is_of_openais_type(more: dict[str, Any], ours: set[str], untyped: tuple[str, ...]) -> None:
    body = renderer(completion_request(**more)).full_response(
        [result_of("Hello.", echo="" if "echo" in more else None)]
    )
    check(Completion, body, ours, untyped)
    (choice,) = body["choices"]
    assert (choice["text"], choice["index"], choice["finish_reason"]) == ("Hello.", 0, "stop")
    assert (choice["logprobs"] is None) == ("logprobs" not in more)


def test_an_echoed_prompts_scores_come_first() -> None:
    (choice,) = renderer(completion_request(logprobs=1, echo=True)).full_response([result_of("ab", echo="xy")])[
        "choices"
    ]
    assert choice["text"] == "xyab"
    assert choice["logprobs"]["tokens"] == ["x", "y", "a", "b"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


def test_choices_of_several_prompts_are_numbered_through() -> None:
    results = [result_of("a", "b"), result_of("c", "d", prompt=(7,))]
    body = renderer(completion_request(prompt=["x", "y"], n=2, return_token_ids=True)).full_response(results)
    check(Completion, body, {"token_ids", "prompt_token_ids"})
    result = [(choice["index"], choice["text"], choice["prompt_token_ids"]) for choice in body["choices"]]
    assert result == [(0, "a", [120, 121]), (1, "b", [120, 121]), (2, "c", [7]), (3, "d", [7])]
    assert body["usage"] == usage_object(Usage(3, 4, 2)), "all of them together"


def test_every_chunk_of_a_completion_is_of_openais_type() -> None:
    """But for a null that OpenAI sends itself: the type knows only the last chunk's reason."""
    for more, ours in (({}, set()), ({"logprobs": 1}, set()), ({"return_token_ids": True}, {"token_ids", "position"})):
        made = renderer(completion_request(stream=True, **more))
        *chunks, last = streamed(made, events_of("Hello.", (2, 4), held=1))
        for chunk in chunks:
            check(Completion, chunk, ours, ["choices.0.finish_reason"])
            choice = {**only(chunk), "finish_reason": "stop"}
            check(Completion, {**chunk, "choices": [choice]}, ours)
        check(Completion, last, ours)
        assert only(last)["finish_reason"] == "stop"


@given(
    st.text(st.characters(codec="ascii"), max_size=20),
    st.lists(st.integers(0, 20), max_size=5),
    st.integers(0, 3),
    st.integers(0, 1),
    st.booleans(),
    st.booleans(),
)
def test_a_streamed_completion_says_what_the_whole_one_does(
    text: str, cuts: list[int], held: int, number: int, ids: bool, echo: bool
) -> None:
    wanted = completion_request(prompt=["x", "y"], n=2, logprobs=1, return_token_ids=ids, echo=echo)
    first, *events = events_of(text, [min(cut, len(text)) for cut in cuts], held=held, index=1)
    if echo:
        first = replace(first, delta=f"xy{first.delta}", prompt_logprobs=scored((121,)))
    chunks = [only(chunk) for chunk in streamed(renderer(wanted), iter([first, *events]), number)]
    results = [result_of("a", text, echo="xy" if echo else None) for _ in range(2)]
    whole = renderer(wanted).full_response(results)["choices"][2 * number + 1]
    assert {chunk["index"] for chunk in chunks} == {whole["index"]}
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"] == "xy" * echo + text
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    for name, values in whole["logprobs"].items():
        assert [value for chunk in chunks for value in chunk["logprobs"][name]] == values, name
    if ids:
        assert [token for chunk in chunks for token in chunk["token_ids"]] == whole["token_ids"]
        assert [chunk["position"] for chunk in chunks] == [
            sum(len(before["token_ids"]) for before in chunks[:place]) for place in range(len(chunks))
        ]


def test_a_completion_says_nothing_while_there_is_nothing_to_say() -> None:
    silent = TextEvent("r", "", (200,), scored((200,)))
    for more, tells in (({}, False), ({"return_token_ids": True}, True), ({"logprobs": 0}, True)):
        assert bool(renderer(completion_request(stream=True, **more)).event(0, silent)) is tells
    ended = TextEvent("r", "", (2,), finish_reason=LENGTH)
    (chunk,) = chunks_of(renderer(completion_request(stream=True)).event(0, ended))
    assert only(chunk) == {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}


def test_a_resumed_completion_goes_on_counting() -> None:
    made = renderer(completion_request(stream=True, n=2, return_token_ids=True, resume=[[], [7, 8]]))
    chunks = streamed(made, events_of("ab", (1,), index=1))
    assert [only(chunk)["position"] for chunk in chunks] == [2, 3]
