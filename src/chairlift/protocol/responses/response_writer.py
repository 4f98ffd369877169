"""ResponseWriter: the response object of one request, and its output items."""

import time
from typing import Any, NamedTuple

from chairlift.protocol.responses.request import ResponseRequest
from chairlift.protocol.responses.response_ids import item_id
from chairlift.protocol.translation.base import Json

COMPLETED, INCOMPLETE, IN_PROGRESS, FAILED = "completed", "incomplete", "in_progress", "failed"

INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""finish_reason of chat completions -> why a response is incomplete."""

ERROR_CODES = {"rate_limit_error": "rate_limit_exceeded", "invalid_request_error": "invalid_prompt"}
"""Type of an error -> the code that a failed response has; server_error for all others."""


class CalledTool(NamedTuple):
    """A call in chat completions, or the part of it in a chunk; the text is the arguments or the input."""

    id: str
    name: str
    text: str
    is_custom: bool

    @classmethod
    def of(cls, call: Json) -> "CalledTool":
        """Return the call of a message or a delta; what is not there is ""."""
        custom: Json | None = call.get("custom")
        if custom is not None:
            return cls(call.get("id", ""), custom.get("name", ""), custom.get("input", ""), is_custom=True)
        function: Json = call["function"]
        return cls(call.get("id", ""), function.get("name", ""), function.get("arguments", ""), is_custom=False)


class ResponseWriter:
    """Builds the objects of one response. `created_at` is in seconds since 1970."""

    def __init__(self, request: ResponseRequest, response_id: str, model: str, created_at: int) -> None:
        self._request, self._id, self._model, self._created_at = request, response_id, model, created_at

    def response(
        self, status: str, output: list[Json], *, usage: Json | None = None, error: Json | None = None, reason: str = ""
    ) -> Json:  # fmt: skip
        """Return the response object; `reason` says why it is incomplete."""
        return {
            "id": self._id, "object": "response", "created_at": self._created_at, "status": status, "error": error,
            "completed_at": int(time.time()) if status == COMPLETED else None,
            "incomplete_details": {"reason": reason} if reason else None, "model": self._model,
            "output": output, "store": self._request.is_stored and status != FAILED, "usage": usage,
            **self._request.echoed,
        }  # fmt: skip

    def reasoning(self, index: int, text: str | None, status: str) -> Json:
        """Return a reasoning item; None for one whose text has not begun."""
        content = [] if text is None else [reasoning_part(text)]
        return {
            "id": item_id("rs", self._id, index), "type": "reasoning", "summary": [], "content": content,
            "encrypted_content": None, "status": status,
        }  # fmt: skip

    def message(self, index: int, text: str | None, logprobs: list[Json], status: str) -> Json:
        """Return a message item; None for one whose text has not begun."""
        return {
            "id": item_id("msg", self._id, index), "type": "message", "role": "assistant", "status": status,
            "content": [] if text is None else [text_part(text, logprobs)],
        }  # fmt: skip

    def call(self, index: int, call: CalledTool, status: str) -> Json:
        """Return the item of a call of a function, or of a custom tool, which has no status."""
        prefix, kind, member = ("ctc", "custom_tool_call", "input") if call.is_custom else (
            "fc", "function_call", "arguments"
        )  # fmt: skip
        name, namespace = self._request.own_tool_name(call.name)
        return {
            "id": item_id(prefix, self._id, index), "type": kind, "call_id": call.id, "name": name,
            **({"namespace": namespace} if namespace else {}), member: call.text,
            **({} if call.is_custom else {"status": status}),
        }  # fmt: skip

    def whole(self, completion: Json) -> Json:
        """Return the response of a whole chat completion."""
        choice = completion["choices"][0]
        reason = INCOMPLETE_REASONS.get(choice["finish_reason"], "")
        status = INCOMPLETE if reason else COMPLETED
        message, output = choice["message"], list[Json]()
        reasoning, calls = message.get("reasoning_content") or "", message.get("tool_calls") or []
        if reasoning:
            output.append(self.reasoning(0, reasoning, COMPLETED))
        if (text := message["content"] or "") or not (reasoning or calls):
            logprobs = text_logprobs(whole_logprobs(choice.get("logprobs")), text)
            output.append(self.message(len(output), text, logprobs, COMPLETED))
        for call in calls:
            output.append(self.call(len(output), CalledTool.of(call), COMPLETED))
        if status == INCOMPLETE and "status" in output[-1]:
            output[-1]["status"] = INCOMPLETE
        return self.response(status, output, usage=usage_object(completion["usage"], output), reason=reason)


def text_part(text: str, logprobs: list[Json]) -> Json:
    """Return the content part of a message's text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def reasoning_part(text: str) -> Json:
    """Return the content part of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def whole_logprobs(logprobs: Any) -> list[Json]:
    """Return the logprobs of a choice as those of a text: a token that is not text has no bytes."""
    tokens = [] if logprobs is None else logprobs.get("content") or []
    return [_token(token) | {"top_logprobs": [_token(top) for top in token["top_logprobs"]]} for token in tokens]


def text_logprobs(tokens: list[Json], text: str) -> list[Json]:
    """Return the tokens whose bytes are in a text; a choice has those of its reasoning, calls and end, too.

    All of them where the text is not to be found, as with a server that reports no bytes.
    """
    content, raw = text.encode(), b"".join(bytes(token["bytes"]) for token in tokens)
    start = raw.rfind(content)
    if start < 0:
        return tokens
    found: list[Json] = []
    position = 0
    for token in tokens:
        end = position + len(token["bytes"])
        if position < start + len(content) and end > start:
            found.append(token)
        position = end
    return found


def _token(token: Json) -> Json:
    return {"token": token["token"], "bytes": token.get("bytes") or [], "logprob": token["logprob"]}


def usage_object(usage: Json, output: list[Json]) -> Json:
    """Return the token counts.

    Those of reasoning are estimated by its share of the output's characters: chat completions count the output only.
    """
    reasoning = sum(len(part["text"]) for item in output if item["type"] == "reasoning" for part in item["content"])
    other = sum(_num_chars(item) for item in output if item["type"] != "reasoning")
    output_tokens: int = usage["completion_tokens"]
    reasoning_tokens = round(output_tokens * reasoning / (reasoning + other)) if reasoning else 0
    cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output_tokens, "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage["prompt_tokens"] + output_tokens,
    }  # fmt: skip


def _num_chars(item: Json) -> int:
    """Return the characters of a message's text, or of a call's arguments or input."""
    if "content" in item:
        return sum(len(part["text"]) for part in item["content"])
    return len(item.get("arguments") or item.get("input") or "")


def error_object(error: Json) -> Json:
    """Return the error of a failed response."""
    return {"code": ERROR_CODES.get(str(error.get("type")), "server_error"), "message": error["message"]}
