"""Requests, renderers, token streams and type checks for the tests of response.py."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ValidationError

from chairlift.core.engine_output import FinishReason, TokenLogprob, Usage
from chairlift.llm.outputs import CompletionOutput, RequestOutput
from chairlift.llm.text_event import TextEvent
from chairlift.protocol.sse import EventReader
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.chat_request import ChatRequest, read_chat
from chairlift.server.openai.completion_request import CompletionRequest, read_completion
from chairlift.server.openai.logprobs import ChatLogprobs, CompletionLogprobs
from chairlift.server.openai.response_renderers import ChatRenderer, CompletionRenderer, ResponseMeta
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.reasoning_formats import THINK_TAGS
from chairlift.text.reasoning_parser import ReasoningParser
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tool_formats.json_calls import HERMES

NUM_PROMPT_TOKENS = 5
META = ResponseMeta("chatcmpl-r", "demo", 1_700_000_000)
PIECES = TokenPieces(ByteTokenizer())
TOOL_CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
EXTENSIONS = {"token_ids", "position", "prompt_token_ids", "reasoning_content"}
"""Fields that OpenAI's types do not have."""

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def extra_fields(model: BaseModel) -> set[str]:
    """Return the names of all fields, at any depth, that the type does not declare."""
    result = set(model.model_extra or {})
    for value in vars(model).values():
        for each in value if isinstance(value, list) else [value]:
            result |= extra_fields(each) if isinstance(each, BaseModel) else set()
    return result


def check_type(
    model_type: type[BaseModel], body: dict[str, Any], extensions: set[str], untyped: Sequence[str] = ()
) -> None:
    """Assert that a body is strictly of OpenAI's type, except for our own fields.

    `untyped` are the names of nulls that the type does not allow, although OpenAI itself sends them.
    """
    try:
        model = model_type.model_validate_json(json.dumps(body, allow_nan=False), strict=True)
    except ValidationError as error:
        errors = [(".".join(map(str, each["loc"])), each["input"]) for each in error.errors()]
        assert errors and errors == [(name, None) for name in untyped], errors
    else:
        assert not untyped, "the type has changed"
        assert extra_fields(model) == extensions


def chat_request(**more: Any) -> ChatRequest:
    return read_chat({"model": "demo", "messages": [{"role": "user", "content": "x"}], **more}, HERMES)


def completion_request(**more: Any) -> CompletionRequest:
    return read_completion({"model": "demo", "prompt": "x", **more})


def chat_renderer(request: ChatRequest, *, is_reasoning: bool = False) -> ChatRenderer:
    logprobs = ChatLogprobs(PIECES, request.params.logprobs or 0) if request.logprobs else None
    delta_builders = [
        ChatDeltaBuilder(
            None if request.tools is None else HERMES.make_parser({}),
            ReasoningParser(THINK_TAGS) if is_reasoning else None,
        )
        for _ in range(request.params.n)
    ]
    return ChatRenderer(request, META, logprobs, delta_builders, num_prompt_tokens=NUM_PROMPT_TOKENS)


def completion_renderer(request: CompletionRequest, prompt: Sequence[int] = (120, 121)) -> CompletionRenderer:
    top, params = request.params.logprobs, request.params
    logprobs = None if top is None else [
        CompletionLogprobs(PIECES, prompt if params.echo else None, top) for _ in range(params.n * len(request.prompts))
    ]  # fmt: skip
    return CompletionRenderer(request, META, logprobs, NUM_PROMPT_TOKENS)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def logprobs_of(token_ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token, -0.5, ((token, -0.5), (66, -1.0))) for token in token_ids)


def events_of(text: str, cuts: Sequence[int] = (), *, index: int = 0, reason: FinishReason = STOP,
              num_held_chars: int = 0, logprobs: bool = True) -> Iterator[TextEvent]:  # fmt: skip
    """Stream a text of one-byte characters in pieces that end at `cuts`.

    The last `num_held_chars` characters of a piece come with the next piece.
    """
    ends = [0, *sorted(cuts), len(text)]
    num_sent_chars = 0
    for number, (start, end) in enumerate(pairwise(ends)):
        is_last = number == len(ends) - 2
        end_char = end if is_last else max(num_sent_chars, end - num_held_chars)
        new = ids_of(text[start:end])
        yield TextEvent(
            "r", text[num_sent_chars:end_char], new, logprobs_of(new) if logprobs else (), reason if is_last else None,
            index=index, usage=Usage(3, len(text), 1) if is_last else None,
        )  # fmt: skip
        num_sent_chars = end_char


def result_of(
    *texts: str, reason: FinishReason = STOP, prompt: tuple[int, ...] = (120, 121), echo: str | None = None
) -> RequestOutput:  # fmt: skip
    outputs = [
        CompletionOutput(index, (echo or "") + text, list(ids_of(text)), list(logprobs_of(ids_of(text))), reason)
        for index, text in enumerate(texts)
    ]
    prompt_logprobs = None if echo is None else [None, *logprobs_of(prompt[1:])]
    usage = Usage(len(prompt), sum(map(len, texts)), 1)
    return RequestOutput("r", "xy", list(prompt), outputs, usage, prompt_token_logprobs=prompt_logprobs)


def chunks_of(data: bytes) -> list[dict[str, Any]]:
    """Return the chunks in a stream's bytes; every event is one line of data."""
    return [json.loads(event.data) for event in EventReader().push(data) if not event.event]


def render_chunks(
    renderer: ChatRenderer | CompletionRenderer, events: Iterator[TextEvent], number: int = 0
) -> list[dict[str, Any]]:
    return [chunk for event in events for chunk in chunks_of(renderer.event(number, event))]


def only_choice(chunk: dict[str, Any]) -> dict[str, Any]:
    (choice,) = chunk["choices"]
    result: dict[str, Any] = choice
    return result
