"""MessageWriter: the message object of one response of Anthropic's API, and its content blocks."""

from collections.abc import Collection
from typing import Any

import orjson

from chairlift.protocol.translation.base import Json

SIGNATURE = "unsigned"
"""The signature of thinking blocks: clients need one to send a block back, and nothing here checks it."""

END_TURN, MAX_TOKENS, STOP_SEQUENCE, TOOL_USE, REFUSAL = (
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal",
)  # fmt: skip
_STOP_REASONS = {"length": MAX_TOKENS, "abort": MAX_TOKENS, "tool_calls": TOOL_USE, "content_filter": REFUSAL}


class MessageWriter:
    """Builds the objects of one response."""

    def __init__(self, message_id: str, model: str, stop_sequences: Collection[str]) -> None:
        self._id, self._model, self._stop_sequences = message_id, model, stop_sequences

    def started(self) -> Json:
        """Return the message as a stream begins with it: its token counts come at the end."""
        return self._message([], {"stop_reason": None, "stop_sequence": None}, usage_object({}))

    def whole(self, completion: Json) -> Json:
        """Return the message of a whole chat completion."""
        choice = completion["choices"][0]
        message, content = choice["message"], list[Json]()
        if reasoning := message.get("reasoning_content"):
            content.append({**thinking_block(reasoning), "signature": SIGNATURE})
        if text := message.get("content"):
            content.append(text_block(text))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            content.append(call_block(call["id"], function["name"], call_input(function["arguments"])))
        return self._message(content, self.ending(choice), usage_object(completion.get("usage") or {}))

    def ending(self, choice: Json) -> Json:
        """Return why a choice, or its last chunk, has ended: stop_reason and stop_sequence."""
        reason, stop = _STOP_REASONS.get(choice.get("finish_reason") or "", END_TURN), choice.get("stop_reason")
        if reason == END_TURN and isinstance(stop, str) and stop in self._stop_sequences:
            return {"stop_reason": STOP_SEQUENCE, "stop_sequence": stop}
        return {"stop_reason": reason, "stop_sequence": None}

    def _message(self, content: list[Json], ending: Json, usage: Json) -> Json:
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content,
            **ending, "usage": usage,
        }  # fmt: skip


def text_block(text: str) -> Json:
    """Return a block of text."""
    return {"type": "text", "text": text}


def thinking_block(text: str) -> Json:
    """Return a block of thinking whose signature follows."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def call_block(call_id: str, name: str, call_input: Json) -> Json:
    """Return a block of a call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": call_input}


def call_input(arguments: str) -> Json:
    """Return the arguments of a call as an object; an empty one where max_tokens has cut them off."""
    try:
        value: Any = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def usage_object(usage: Json) -> Json:
    """Return the token counts: `input_tokens` are those that no cache had."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached, "output_tokens": usage.get("completion_tokens", 0),
    }  # fmt: skip
