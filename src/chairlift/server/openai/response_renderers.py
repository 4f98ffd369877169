"""Renderer: writes the text service's outputs as OpenAI's JSON, whole or in chunks.

A chunk is a byte template around one choice; its beginning (id, model, time) is encoded once a request.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import orjson

from chairlift import __version__
from chairlift.core.engine_output import FinishReason, TokenLogprob, Usage
from chairlift.llm.outputs import CompletionOutput, RequestOutput
from chairlift.llm.text_event import TextEvent
from chairlift.protocol.sse import data_event, named_event
from chairlift.server.openai.base_request import BaseRequest
from chairlift.server.openai.chat_delta import ChatDeltaBuilder, merged_delta
from chairlift.server.openai.chat_request import ChatRequest
from chairlift.server.openai.completion_request import CompletionRequest
from chairlift.server.openai.logprobs import ChatLogprobs, CompletionLogprobs

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

    def progress(self, number: int, event: TextEvent) -> bytes:
        """Return the event `progress` with the tokens of one text event; empty without tokens.

        Empty for a request that ranks its choices: nothing is delivered before its end.
        """
        ...

    def usage(self, usage: Usage) -> bytes:
        """Return the stream's last event, with the token counts."""
        ...

    def full_response(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """Return the body of a response that is not streamed."""
        ...


class _ChunkTemplate:
    """Encodes the chunks of one request around a fixed byte template."""

    def __init__(self, meta: ResponseMeta, kind: str, request: BaseRequest, num_prompt_tokens: int) -> None:
        envelope = orjson.dumps(meta.envelope(kind))[:-1]
        self._before = envelope + b',"choices":['
        self._after = b'],"usage":null}' if request.include_usage else b"]}"
        self._envelope, self._num_prompt_tokens = envelope, num_prompt_tokens
        self._has_counts = request.has_continuous_usage
        self._usage_object = partial(usage_object, has_prediction=request.prediction is not None)

    def choice(self, choice: dict[str, Any], positions: "_ResumedPositions") -> bytes:
        """Return the event of a choice; `positions` count the output tokens up to its end."""
        after = self._counts(positions.num_tokens) if self._has_counts else self._after
        return data_event(self._before + orjson.dumps(choice) + after)

    def _counts(self, num_output_tokens: int) -> bytes:
        return b'],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}' % (
            self._num_prompt_tokens, num_output_tokens, self._num_prompt_tokens + num_output_tokens
        )  # fmt: skip

    def usage(self, usage: Usage) -> bytes:
        """Return the event without a choice."""
        return data_event(self._envelope + b',"choices":[],"usage":' + orjson.dumps(self._usage_object(usage)) + b"}")


class _ResumedPositions:
    """The number of output tokens of each choice that were delivered, those before the request was resumed included."""

    def __init__(self, request: BaseRequest, num_choices: int) -> None:
        self._resumed = [len(tokens) for tokens in request.resume[:num_choices]]
        self._resumed += [0] * (num_choices - len(self._resumed))
        self._positions = [*self._resumed]

    def __getitem__(self, index: int) -> int:
        return self._positions[index]

    @property
    def num_tokens(self) -> int:
        """Output tokens of all choices so far, those before the request was resumed included."""
        return sum(self._positions)

    def advance(self, index: int, event: TextEvent) -> int:
        """Count the tokens of a choice's event; return the position of the first of them."""
        position = self._positions[index]
        self._positions[index] += len(event.token_ids)
        return position

    def had_ended(self, index: int, event: TextEvent) -> bool:
        """Whether the event repeats the end of a choice that had ended before the request was resumed.

        The text that was held back until that end was delivered with the last of the resumed tokens.
        """
        resumed = self._resumed[index]
        return (
            event.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            and not event.token_ids
            and 0 < resumed == self._positions[index]
        )


class _HeldPrompts:
    """Echoed prompts and their logprobs, of choices without a token yet."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[str, tuple[TokenLogprob, ...]]] = {}

    def add(self, index: int, event: TextEvent) -> None:
        """Hold the text and the prompt's logprobs of an event without tokens."""
        text, logprobs = self._held.get(index, ("", ()))
        self._held[index] = text + event.delta, logprobs + event.prompt_logprobs

    def take(self, index: int) -> tuple[str, tuple[TokenLogprob, ...]]:
        """Return what is held of a choice, and hold it no longer."""
        return self._held.pop(index, ("", ()))


class ChatRenderer:
    """Renders responses of /v1/chat/completions. Owns one ChatDeltaBuilder for each choice."""

    def __init__(
        self,
        request: ChatRequest,
        meta: ResponseMeta,
        logprobs_formatter: ChatLogprobs | None,
        builders: Sequence[ChatDeltaBuilder],
        num_prompt_tokens: int = 0,
    ) -> None:
        self._request = request
        self._meta = meta
        self._logprobs_formatter = logprobs_formatter
        self._builders = builders
        self._chunks = _ChunkTemplate(meta, "chat.completion.chunk", request, num_prompt_tokens)
        self._positions = _ResumedPositions(request, len(builders))
        self._has_started = [self._positions[index] > 0 for index in range(len(builders))]

    def event(self, number: int, event: TextEvent) -> bytes:
        """See Renderer."""
        builder, index = self._builders[event.index], event.index
        if event.finish_reason is None:
            deltas = builder.push(event.delta)
        else:
            deltas = [] if self._positions.had_ended(index, event) else builder.finish(event.delta)
        reason = None if event.finish_reason is None else builder.reason(event.finish_reason)
        if not deltas and not event.token_ids and reason is None:
            return b""
        is_first = not self._has_started[index]
        if is_first:
            self._has_started[index] = True
            deltas.insert(0, {"role": "assistant", "content": ""})
        logprobs = None if self._logprobs_formatter is None else self._logprobs_formatter.of(event.logprobs)
        position = self._positions.advance(index, event)
        if self._request.return_token_ids:  # one chunk, so that a cut between two chunks loses no part of an output
            choice = {
                "index": index, "delta": merged_delta(deltas or [{}]), "logprobs": logprobs, "finish_reason": reason,
                **_stop_field(event), "token_ids": event.token_ids, "position": position,
            }  # fmt: skip
            return self._chunks.choice(choice, self._positions)
        if not deltas and (reason is not None or logprobs is not None):
            deltas = [{}]
        chunks: list[bytes] = []
        token_delta = int(is_first and len(deltas) > 1)  # the delta that carries logprobs: not that of the role
        for position, delta in enumerate(deltas):
            is_end = position == len(deltas) - 1
            choice = {
                "index": index, "delta": delta, "logprobs": logprobs if position == token_delta else None,
                "finish_reason": reason if is_end else None, **(_stop_field(event) if is_end else {}),
            }  # fmt: skip
            chunks.append(self._chunks.choice(choice, self._positions))
        return b"".join(chunks)

    def progress(self, number: int, event: TextEvent) -> bytes:
        """See Renderer."""
        if not event.token_ids:
            return b""
        logprobs = None if self._logprobs_formatter is None else self._logprobs_formatter.of(event.logprobs)
        return _progress_event(event.index, event, self._positions.advance(event.index, event), logprobs)

    def usage(self, usage: Usage) -> bytes:
        """See Renderer."""
        return self._chunks.usage(usage)

    def full_response(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Renderer."""
        result = results[0]
        choices = [self._choice(output) for output in result.outputs]
        usage = usage_object(result.usage, has_prediction=self._request.prediction is not None)
        body = {**self._meta.envelope("chat.completion"), "choices": choices, "usage": usage}
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
            "finish_reason": builder.reason(output.finish_reason), **_stop_field(output),
        }  # fmt: skip
        return choice | ({"token_ids": output.token_ids} if self._request.return_token_ids else {})


class CompletionRenderer:
    """Renders responses of /v1/completions."""

    def __init__(
        self, request: CompletionRequest, meta: ResponseMeta, logprobs_formatters: Sequence[CompletionLogprobs] | None,
        num_prompt_tokens: int = 0,
    ) -> None:  # fmt: skip
        """Start a response.

        `logprobs_formatters` has one entry for each choice of all prompts, or is None. `num_prompt_tokens` are those of
        all prompts, for the counts of each chunk.
        """
        self._request = request
        self._meta = meta
        self._logprobs_formatters = logprobs_formatters
        self._chunks = _ChunkTemplate(meta, "text_completion", request, num_prompt_tokens)
        self._positions = _ResumedPositions(request, request.params.n * len(request.prompts))
        self._held_prompts = _HeldPrompts()

    def event(self, number: int, event: TextEvent) -> bytes:
        """See Renderer."""
        index = number * self._request.params.n + event.index
        returns_ids = self._request.return_token_ids
        if returns_ids and event.finish_reason is None and not event.token_ids:
            # The echoed prompt waits for the first token: without one, a request that goes on elsewhere starts again.
            self._held_prompts.add(index, event)
            return b""
        text, prompt_logprobs = self._held_prompts.take(index)
        text += "" if self._positions.had_ended(index, event) else event.delta
        logprobs = self._logprobs(index, event, prompt_logprobs)
        position = self._positions.advance(index, event)
        if not (text or event.finish_reason or logprobs or returns_ids):
            return b""
        reason = None if event.finish_reason is None else str(event.finish_reason)
        choice: dict[str, Any] = {
            "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, **_stop_field(event)
        }  # fmt: skip
        if returns_ids:
            choice |= {"token_ids": event.token_ids, "position": position}
        return self._chunks.choice(choice, self._positions)

    def progress(self, number: int, event: TextEvent) -> bytes:
        """See Renderer."""
        if self._request.params.num_choices > self._request.params.n:
            return b""
        index = number * self._request.params.n + event.index
        if not event.token_ids:
            self._held_prompts.add(index, event)
            return b""
        _, prompt_logprobs = self._held_prompts.take(index)
        logprobs = self._logprobs(index, event, prompt_logprobs)
        return _progress_event(index, event, self._positions.advance(index, event), logprobs)

    def _logprobs(
        self, index: int, event: TextEvent, held_prompt: tuple[TokenLogprob, ...]
    ) -> dict[str, Any] | None:  # fmt: skip
        """Return the logprobs of an event, after those of the prompt that were held back."""
        if self._logprobs_formatters is None:
            return None
        return self._logprobs_formatters[index].of(event.logprobs, held_prompt + event.prompt_logprobs)

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
            "index": index, "text": output.text, "logprobs": logprobs, "finish_reason": str(output.finish_reason),
            **_stop_field(output),
        }  # fmt: skip
        if self._request.return_token_ids:
            choice |= {"token_ids": output.token_ids, "prompt_token_ids": result.prompt_token_ids}
        return choice


def _stop_field(ended: TextEvent | CompletionOutput) -> dict[str, str | int]:
    """Return the field `stop_reason` of a choice that a stop string or a stop token id has ended, else no field."""
    return {} if ended.stop_reason is None else {"stop_reason": ended.stop_reason}


def _progress_event(index: int, event: TextEvent, position: int, logprobs: dict[str, Any] | None) -> bytes:
    progress = {"index": index, "token_ids": event.token_ids, "position": position}
    return named_event(b"progress", orjson.dumps(progress if logprobs is None else progress | {"logprobs": logprobs}))


def usage_object(usage: Usage, *, has_prediction: bool = False) -> dict[str, Any]:
    """Return OpenAI's usage object, for a request with a prediction with the counts of its tokens."""
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if has_prediction:
        counts["completion_tokens_details"] = {
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        }
    return counts


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum of the usages."""
    each = list(usages)
    return Usage(
        sum(usage.prompt_tokens for usage in each), sum(usage.completion_tokens for usage in each),
        sum(usage.cached_tokens for usage in each), sum(usage.accepted_prediction_tokens for usage in each),
        sum(usage.rejected_prediction_tokens for usage in each),
    )  # fmt: skip
