"""AnswerWriter: the objects of responses of /api/chat and /api/generate."""

import time
from datetime import UTC, datetime
from typing import Any

import orjson

from chairlift.protocol.ollama.request import OllamaRequest
from chairlift.protocol.translation.base import Json

NANOSECONDS = 1_000_000_000
DONE_REASONS = {"tool_calls": "stop"}
"""Finish reason of the OpenAI API -> reason here, where they differ."""


class AnswerWriter:
    """Builds the objects of one response, whole or a line each. Measures its time from its creation."""

    def __init__(self, request: OllamaRequest, *, is_chat: bool) -> None:
        """Begin; with `is_chat` an answer is a message, otherwise a text."""
        self._request, self._is_chat = request, is_chat
        self._model = request.model
        self._started_at = time.monotonic()

    def part(
        self, text: str = "", thinking: str = "", calls: list[Json] | None = None, logprobs: list[Json] | None = None
    ) -> Json:  # fmt: skip
        """Return an object with a part of the answer, which is not the last one."""
        result = {"model": self._model, "created_at": timestamp(), "done": False}
        more: Json = {"thinking": thinking} if thinking else {}
        if self._is_chat:
            more |= {"tool_calls": calls} if calls else {}
            result["message"] = {"role": "assistant", "content": text, **more}
        else:
            result |= {"response": text, **more}
        return result | ({"logprobs": logprobs} if logprobs else {})

    def last(self, part: Json, finish_reason: str, usage: Json | None, first_token_at: float | None) -> Json:
        """Return a part as the last object of a response, with its counts and durations."""
        reason = DONE_REASONS.get(finish_reason, finish_reason)
        return part | {"done": True, "done_reason": reason, **self._counts(usage or {}, first_token_at)}

    def name_model(self, name: str) -> None:
        """Take the name of the model that answers, where the request has none."""
        self._model = self._model or name

    def loaded(self, model: str) -> Json:
        """Return the response to a request without a text; `model` as of name_model."""
        self.name_model(model)
        return self.part() | {"done": True, "done_reason": self._request.load_reason}

    def whole(self, response: Json, first_token_at: float | None) -> Json:
        """Return the response of a whole response of the OpenAI API."""
        self.name_model(response.get("model", ""))
        choice = response["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        calls = [each for call in message.get("tool_calls") or () if (each := tool_call(call["function"])) is not None]
        part = self.part(
            message["content"] or "",
            message.get("reasoning_content") or "",
            calls,
            self.logprobs(choice.get("logprobs")),
        )
        return self.last(part, choice["finish_reason"], response.get("usage"), first_token_at)

    def logprobs(self, logprobs: Any) -> list[Json]:
        """Return the logprobs of a choice, or of a part of it."""
        if logprobs is None:
            return []
        if "content" in logprobs:
            return [self._token(token) for token in logprobs["content"] or ()]
        columns = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"] or (), strict=False)
        return [{"token": token, "logprob": logprob, **self._likeliest(top)} for token, logprob, top in columns]

    def _likeliest(self, top: dict[str, float] | None) -> Json:
        """Return the likeliest tokens of completions, nothing where none are to be returned."""
        if not self._request.top_logprobs:
            return {}
        pairs = sorted((top or {}).items(), key=lambda pair: -pair[1])[: self._request.top_logprobs]
        return {"top_logprobs": [{"token": token, "logprob": logprob} for token, logprob in pairs]}

    def _token(self, token: Json) -> Json:
        top = {"top_logprobs": [_one(each) for each in token["top_logprobs"]]} if self._request.top_logprobs else {}
        return _one(token) | top

    def _counts(self, usage: Json, first_token_at: float | None) -> Json:
        now = time.monotonic()
        counts: Json = {"total_duration": _nanoseconds(now - self._started_at), "load_duration": 0}
        if "prompt_tokens" in usage:
            counts |= {"prompt_eval_count": usage["prompt_tokens"], "eval_count": usage.get("completion_tokens", 0)}
        if first_token_at is not None:
            counts["prompt_eval_duration"] = _nanoseconds(first_token_at - self._started_at)
            counts["eval_duration"] = _nanoseconds(now - first_token_at)
        return counts


def tool_call(function: Json) -> Json | None:
    """Return a call with its arguments as an object; None for one that was cut off."""
    try:
        arguments = orjson.loads(function.get("arguments") or "{}")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(arguments, dict):
        return None
    return {"function": {"name": function["name"], "arguments": arguments}}


def timestamp() -> str:
    """Return the time now as Ollama writes it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _one(token: Json) -> Json:
    raw = token.get("bytes")
    return {"token": token["token"], "logprob": token["logprob"]} | ({"bytes": raw} if raw else {})


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * NANOSECONDS))
