"""MessageList: the items of a conversation of the Responses API as messages of chat completions.

reasoning, message, function_call, function_call  ──>  one message of the assistant, with its reasoning and calls
function_call_output                              ──>  a message of the role tool
"""

from typing import Any

from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import format_short, string_member
from chairlift.protocol.request_fields import MAX_MESSAGES
from chairlift.protocol.translation.base import Json

ROLES = ("user", "system", "developer", "assistant")


class MessageList:
    """Collects messages.

    Attributes:
        messages: the messages so far.
        places: for each of them the place in the request.
    """

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self.places: list[str] = []
        self._reasoning: list[str] = []

    def add_message(self, role: str, content: Any, place: str) -> None:
        """Add a plain message."""
        self._append({"role": role, "content": content}, place)

    def add_items(self, items: list[Any], field: str, place: str = "") -> None:
        """Add items of a field. Their place is `field[index]`, or `place` for all of them. Raises InvalidRequest."""
        for index, item in enumerate(items):
            at = place or f"{field}[{index}]"
            if not isinstance(item, dict):
                raise invalid_param(at, f"must be an object, got {format_short(item)}")
            self._add(item, at)

    def finish(self) -> None:
        """End the list; reasoning without an answer behind it becomes an answer without text. Raises InvalidRequest."""
        if self._reasoning:
            self._answer(self.places[-1] if self.places else "input")
        if not self.messages:
            raise invalid_param("input", "has no message, only reasoning without text")

    def _add(self, item: Json, at: str) -> None:
        kind = item.get("type")
        match "message" if kind is None and "role" in item else kind:
            case "message":
                self._add_role_message(item, at)
            case "function_call":
                self._add_call(item, at, string_member(item, "arguments", at))
            case "function_call_output":
                self._append(
                    {"role": "tool", "content": item.get("output"), "tool_call_id": string_member(item, "call_id", at)},
                    at,
                )
            case "reasoning":
                self._reasoning += [text for text in _reasoning_texts(item, at) if text]
            case None:
                raise invalid_param(f"{at}.type", "is missing")
            case _:
                raise invalid_param(
                    f"{at}.type", f"must be message, function_call, function_call_output, reasoning or item_reference, "
                    f"got {format_short(kind)}",
                )  # fmt: skip

    def _add_role_message(self, item: Json, at: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in ROLES:
            raise invalid_param(
                f"{at}.role", f"must be {', '.join(ROLES[:-1])} or {ROLES[-1]}, got {format_short(role)}"
            )
        if role != "assistant":
            self._append({"role": role, "content": content}, at)
            return
        answer = self._answer(at)
        if answer["content"] is None and not answer.get("tool_calls"):
            answer["content"] = "" if content is None else content
        else:  # an answer of its own
            self._append({"role": role, "content": content}, at)

    def _add_call(self, item: Json, at: str, arguments: str) -> None:
        function = {"name": string_member(item, "name", at), "arguments": arguments}
        call = {"id": string_member(item, "call_id", at), "type": "function", "function": function}
        self._answer(at).setdefault("tool_calls", []).append(call)

    def _answer(self, at: str) -> Json:
        """Return the assistant's message that an item belongs to: the last one, or a new one."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and not self._reasoning:
            return last
        answer: Json = {"role": "assistant", "content": None}
        if self._reasoning:
            answer["reasoning_content"] = "\n".join(self._reasoning)
            self._reasoning = []
        self.messages.append(answer)
        self.places.append(at)
        self._check_count(at)
        return answer

    def _append(self, message: Json, at: str) -> None:
        if self._reasoning:
            self._answer(at)
        self.messages.append(message)
        self.places.append(at)
        self._check_count(at)

    def _check_count(self, at: str) -> None:
        if len(self.messages) > MAX_MESSAGES:
            raise invalid_param(at.partition("[")[0], f"has more than {MAX_MESSAGES} messages, which is the limit")


def _reasoning_texts(item: Json, at: str) -> list[str]:
    """Return the texts of a reasoning item: those of its content, or else of its summary."""
    content, summary = (_part_texts(item.get(name), f"{at}.{name}") for name in ("content", "summary"))
    return content or summary


def _part_texts(parts: Any, at: str) -> list[str]:
    if parts is None:
        return []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise invalid_param(at, f"must be a list of objects, got {format_short(parts)}")
    texts = [part.get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise invalid_param(at, "must have only parts with a text")
    return texts
