"""Renderer: writes the text service's outputs as OpenAI's JSON, whole or in chunks.

A chunk is a byte template around one choice; its beginning (id, model, time) is encoded once a request.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from chairlift import __version__
from chairlift.core.request import Usage
from chairlift.llm.outputs import CompletionOutput, RequestOutput, TextEvent
from chairlift.protocol.sse import data_event
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.logprobs import ChatLogprobs, CompletionLogprobs
from chairlift.server.openai.parse_request import ChatRequest, CompletionRequest

FINGERPRINT = f"chairlift-{__version__}"


@dataclass(frozen=True, slots=True)
class ResponseMeta:
    """The fields that every part of one response repeats.

    Attributes:
        id: the response's id.
        model: the model's name in the request.
        created: seconds since 1970.
    """

    id: str
    model: str
    created: int

    @classmethod
    def of(cls, prefix: str, request_id: str, model: str) -> "ResponseMeta":
        """Derive a response's id from its request's id."""
        return cls(f"{prefix}-{request_id}", model, int(time.time()))

    def envelope(self, kind: str) -> dict[str, Any]:
        """Return the fields around the choices."""
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }  # fmt: skip


class Renderer(Protocol):
    """Renders one response. `number` is the index of the prompt in the request."""

    def event(self, number: int, event: TextEvent) -> bytes:
        """Return the server-sent events of one text event; empty where nothing is to be sent yet."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """Return the stream's last event, with the token counts."""
        ...

    def full_response(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """Return the body of a response that is not streamed."""
        ...


class _ChunkTemplate:
    """Encodes the chunks of one request around a fixed byte template."""

    def __init__(self, meta: ResponseMeta, kind: str, *, with_usage: bool) -> None:
        envelope = orjson.dumps(meta.envelope(kind))[:-1]
        self._before = envelope + b',"choices":['
        self._after = b'],"usage":null}' if with_usage else b"]}"
        self._envelope = envelope

    def choice(self, choice: dict[str, Any]) -> bytes:
        """Return the event of a choice."""
        return data_event(self._before + orjson.dumps(choice) + self._after)

    def usage(self, usage: Usage) -> bytes:
        """Return the event without a choice."""
        return data_event(self._envelope + b',"choices":[],"usage":' + orjson.dumps(usage_object(usage)) + b"}")


class ChatRenderer:
    """Renders responses of /v1/chat/completions. Owns one ChatDeltaBuilder for each choice."""

    def __init__(
        self,
        request: ChatRequest,
        meta: ResponseMeta,
        logprobs_formatter: ChatLogprobs | None,
        builders: Sequence[ChatDeltaBuilder],
    ) -> None:
        self._request = request
        self._meta = meta
        self._logprobs_formatter = logprobs_formatter
        self._builders = builders
        self._chunks = _ChunkTemplate(meta, "chat.completion.chunk", with_usage=request.include_usage)
        self._positions = [len(request.resume[i]) if i < len(request.resume) else 0 for i in range(len(builders))]
        self._has_started = [position > 0 for position in self._positions]

    def event(self, number: int, event: TextEvent) -> bytes:
        """See Renderer."""
        builder, index = self._builders[event.index], event.index
        deltas = builder.push(event.delta) if event.finish_reason is None else builder.finish(event.delta)
        is_first = not self._has_started[index]
        if is_first:
            self._has_started[index] = True
            deltas.insert(0, {"role": "assistant", "content": ""})
        logprobs = None if self._logprobs_formatter is None else self._logprobs_formatter.of(event.logprobs)
        more: dict[str, Any] = {}
        if self._request.return_token_ids:
            more = {"token_ids": event.token_ids, "position": self._positions[index]}
            self._positions[index] += len(event.token_ids)
        reason = None if event.finish_reason is None else builder.reason(event.finish_reason)
        if not deltas and (reason is not None or (event.token_ids and (more or logprobs is not None))):
            deltas = [{}]
        chunks: list[bytes] = []
        token_delta = int(is_first and len(deltas) > 1)  # the delta that carries tokens: not that of the role
        for position, delta in enumerate(deltas):
            has_tokens, last = position == token_delta, position == len(deltas) - 1
            choice = {
                "index": index, "delta": delta, "logprobs": logprobs if has_tokens else None,
                "finish_reason": reason if last else None, **(more if has_tokens else {}),
            }  # fmt: skip
            chunks.append(self._chunks.choice(choice))
        return b"".join(chunks)

    def usage(self, usage: Usage) -> bytes:
        """See Renderer."""
        return self._chunks.usage(usage)

    def full_response(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Renderer."""
        result = results[0]
        choices = [self._choice(output) for output in result.outputs]
        body = {**self._meta.envelope("chat.completion"), "choices": choices, "usage": usage_object(result.usage)}
        if self._request.return_token_ids:
            body["prompt_token_ids"] = result.prompt_token_ids
        return body

    def _choice(self, output: CompletionOutput) -> dict[str, Any]:
        builder = self._builders[output.index]
        message = builder.message(output.text)
        assert output.finish_reason is not None, "the request has ended"
        choice = {
            "index": output.index, "message": message,
            "logprobs":
                None if self._logprobs_formatter is None else self._logprobs_formatter.of(output.token_logprobs or ()),
            "finish_reason": builder.reason(output.finish_reason),
        }  # fmt: skip
        return choice | ({"token_ids": output.token_ids} if self._request.return_token_ids else {})


class CompletionRenderer:
    """Renders responses of /v1/completions."""

    def __init__(
        self, request: CompletionRequest, meta: ResponseMeta, logprobs_formatters: Sequence[CompletionLogprobs] | None
    ) -> None:
        """Start a response.

        `logprobs_formatters` has one entry for each choice of all prompts, or is None.
        """
        self._request = request
        self._meta = meta
        self._logprobs_formatters = logprobs_formatters
        self._chunks = _ChunkTemplate(meta, "text_completion", with_usage=request.include_usage)
        resume, n = request.resume, request.params.n * len(request.prompts)
        self._positions = [len(resume[i]) if i < len(resume) else 0 for i in range(n)]

    def event(self, number: int, event: TextEvent) -> bytes:
        """See Renderer."""
        index = number * self._request.params.n + event.index
        logprobs = None
        if self._logprobs_formatters is not None:
            logprobs = self._logprobs_formatters[index].of(event.logprobs, event.prompt_logprobs)
        if not (event.delta or event.finish_reason or logprobs or self._request.return_token_ids):
            return b""
        reason = None if event.finish_reason is None else str(event.finish_reason)
        choice: dict[str, Any] = {
            "index": index, "text": event.delta, "logprobs": logprobs, "finish_reason": reason
        }  # fmt: skip
        if self._request.return_token_ids:
            choice |= {"token_ids": event.token_ids, "position": self._positions[index]}
            self._positions[index] += len(event.token_ids)
        return self._chunks.choice(choice)

    def usage(self, usage: Usage) -> bytes:
        """See Renderer."""
        return self._chunks.usage(usage)

    def full_response(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Renderer."""
        choices = [
            self._choice(number, result, output) for number, result in enumerate(results) for output in result.outputs
        ]
        usage = total(result.usage for result in results)
        return {**self._meta.envelope("text_completion"), "choices": choices, "usage": usage_object(usage)}

    def _choice(self, number: int, result: RequestOutput, output: CompletionOutput) -> dict[str, Any]:
        index = number * self._request.params.n + output.index
        logprobs = None
        if self._logprobs_formatters is not None:
            prompt = [each for each in result.prompt_token_logprobs or () if each is not None]
            logprobs = self._logprobs_formatters[index].of(output.token_logprobs or (), prompt)
        assert output.finish_reason is not None, "the request has ended"
        choice: dict[str, Any] = {
            "index": index, "text": output.text, "logprobs": logprobs, "finish_reason": str(output.finish_reason)
        }  # fmt: skip
        if self._request.return_token_ids:
            choice |= {"token_ids": output.token_ids, "prompt_token_ids": result.prompt_token_ids}
        return choice


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum of the usages."""
    each = list(usages)
    return Usage(
        sum(usage.prompt_tokens for usage in each), sum(usage.completion_tokens for usage in each),
        sum(usage.cached_tokens for usage in each),
    )  # fmt: skip
