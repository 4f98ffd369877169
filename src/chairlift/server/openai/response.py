"""Render: what the text service says becomes OpenAI's JSON, whole or in chunks.

A chunk is a byte template around one choice: its beginning (id, model, time) is made once a request.
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
from chairlift.server.openai.chat_delta import Voice
from chairlift.server.openai.logprobs import ChatScores, CompletionScores
from chairlift.server.openai.parse_request import ChatAsked, CompletionAsked

FINGERPRINT = f"chairlift-{__version__}"


@dataclass(frozen=True, slots=True)
class Named:
    """What every part of one answer has.

    Attributes:
        id: of the answer.
        model: as the server names it.
        created: seconds since 1970.
    """

    id: str
    model: str
    created: int

    @classmethod
    def of(cls, prefix: str, request_id: str, model: str) -> "Named":
        """Name an answer after its request."""
        return cls(f"{prefix}-{request_id}", model, int(time.time()))

    def around(self, kind: str) -> dict[str, Any]:
        """Return the fields around the choices."""
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }  # fmt: skip


class Renderer(Protocol):
    """One answer's. `number` is the prompt's, of those that the request has."""

    def event(self, number: int, event: TextEvent) -> bytes:
        """Return the server-sent events of one piece of news; "" where there is nothing to say yet."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """Return the last event, that of the counts."""
        ...

    def whole(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """Return the whole answer."""
        ...


class _Chunks:
    """The template of a request's chunks."""

    def __init__(self, named: Named, kind: str, *, with_usage: bool) -> None:
        around = orjson.dumps(named.around(kind))[:-1]
        self._before = around + b',"choices":['
        self._after = b'],"usage":null}' if with_usage else b"]}"
        self._around = around

    def choice(self, choice: dict[str, Any]) -> bytes:
        """Return the event of a choice."""
        return data_event(self._before + orjson.dumps(choice) + self._after)

    def usage(self, usage: Usage) -> bytes:
        """Return the event without a choice."""
        return data_event(self._around + b',"choices":[],"usage":' + orjson.dumps(counts(usage)) + b"}")


class ChatRenderer:
    """Of /v1/chat/completions. Owns a Voice for each choice."""

    def __init__(self, asked: ChatAsked, named: Named, scores: ChatScores | None, voices: Sequence[Voice]) -> None:
        self._asked = asked
        self._named = named
        self._scores = scores
        self._voices = voices
        self._chunks = _Chunks(named, "chat.completion.chunk", with_usage=asked.include_usage)
        self._positions = [len(asked.resume[i]) if i < len(asked.resume) else 0 for i in range(len(voices))]
        self._begun = [position > 0 for position in self._positions]

    def event(self, number: int, event: TextEvent) -> bytes:
        """See Renderer."""
        voice, index = self._voices[event.index], event.index
        deltas = voice.push(event.delta) if event.finish_reason is None else voice.finish(event.delta)
        begins = not self._begun[index]
        if begins:
            self._begun[index] = True
            deltas.insert(0, {"role": "assistant", "content": ""})
        logprobs = None if self._scores is None else self._scores.of(event.logprobs)
        more: dict[str, Any] = {}
        if self._asked.return_token_ids:
            more = {"token_ids": event.token_ids, "position": self._positions[index]}
            self._positions[index] += len(event.token_ids)
        reason = None if event.finish_reason is None else voice.reason(event.finish_reason)
        if not deltas and (reason is not None or (event.token_ids and (more or logprobs is not None))):
            deltas = [{}]
        made: list[bytes] = []
        bearer = int(begins and len(deltas) > 1)  # the one that brings tokens: not that of the role
        for place, delta in enumerate(deltas):
            brings, last = place == bearer, place == len(deltas) - 1
            choice = {
                "index": index, "delta": delta, "logprobs": logprobs if brings else None,
                "finish_reason": reason if last else None, **(more if brings else {}),
            }  # fmt: skip
            made.append(self._chunks.choice(choice))
        return b"".join(made)

    def usage(self, usage: Usage) -> bytes:
        """See Renderer."""
        return self._chunks.usage(usage)

    def whole(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Renderer."""
        result = results[0]
        choices = [self._choice(output) for output in result.outputs]
        found = {**self._named.around("chat.completion"), "choices": choices, "usage": counts(result.usage)}
        if self._asked.return_token_ids:
            found["prompt_token_ids"] = result.prompt_token_ids
        return found

    def _choice(self, output: CompletionOutput) -> dict[str, Any]:
        voice = self._voices[output.index]
        message = voice.message(output.text)
        assert output.finish_reason is not None, "the request has ended"
        choice = {
            "index": output.index, "message": message,
            "logprobs": None if self._scores is None else self._scores.of(output.logprobs or ()),
            "finish_reason": voice.reason(output.finish_reason),
        }  # fmt: skip
        return choice | ({"token_ids": output.token_ids} if self._asked.return_token_ids else {})


class CompletionRenderer:
    """Of /v1/completions."""

    def __init__(self, asked: CompletionAsked, named: Named, scores: Sequence[CompletionScores] | None) -> None:
        """Begin; `scores` has one entry a choice of all prompts, where they are asked for."""
        self._asked = asked
        self._named = named
        self._scores = scores
        self._chunks = _Chunks(named, "text_completion", with_usage=asked.include_usage)
        resume, n = asked.resume, asked.params.n * len(asked.prompts)
        self._positions = [len(resume[i]) if i < len(resume) else 0 for i in range(n)]

    def event(self, number: int, event: TextEvent) -> bytes:
        """See Renderer."""
        index = number * self._asked.params.n + event.index
        logprobs = None
        if self._scores is not None:
            logprobs = self._scores[index].of(event.logprobs, event.prompt_logprobs)
        if not (event.delta or event.finish_reason or logprobs or self._asked.return_token_ids):
            return b""
        reason = None if event.finish_reason is None else str(event.finish_reason)
        choice: dict[str, Any] = {
            "index": index, "text": event.delta, "logprobs": logprobs, "finish_reason": reason
        }  # fmt: skip
        if self._asked.return_token_ids:
            choice |= {"token_ids": event.token_ids, "position": self._positions[index]}
            self._positions[index] += len(event.token_ids)
        return self._chunks.choice(choice)

    def usage(self, usage: Usage) -> bytes:
        """See Renderer."""
        return self._chunks.usage(usage)

    def whole(self, results: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Renderer."""
        choices = [
            self._choice(number, result, output) for number, result in enumerate(results) for output in result.outputs
        ]
        usage = total(result.usage for result in results)
        return {**self._named.around("text_completion"), "choices": choices, "usage": counts(usage)}

    def _choice(self, number: int, result: RequestOutput, output: CompletionOutput) -> dict[str, Any]:
        index = number * self._asked.params.n + output.index
        logprobs = None
        if self._scores is not None:
            prompt = [each for each in result.prompt_logprobs or () if each is not None]
            logprobs = self._scores[index].of(output.logprobs or (), prompt)
        assert output.finish_reason is not None, "the request has ended"
        choice: dict[str, Any] = {
            "index": index, "text": output.text, "logprobs": logprobs, "finish_reason": str(output.finish_reason)
        }  # fmt: skip
        if self._asked.return_token_ids:
            choice |= {"token_ids": output.token_ids, "prompt_token_ids": result.prompt_token_ids}
        return choice


def counts(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's token counts."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def total(usages: Iterable[Usage]) -> Usage:
    """Add counts up."""
    each = list(usages)
    return Usage(
        sum(usage.prompt_tokens for usage in each), sum(usage.completion_tokens for usage in each),
        sum(usage.cached_tokens for usage in each),
    )  # fmt: skip
