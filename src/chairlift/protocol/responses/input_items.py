"""MessageList: the items of a conversation of the Responses API as messages of chat completions.

reasoning, message, function_call, function_call  ──>  one message of the assistant, with its reasoning and calls
function_call_output                              ──>  a message of the role tool
compaction                                        ──>  a message of the user with the summary
"""

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import format_short, string_member
from chairlift.protocol.left_out_types import LeftOutTypes
from chairlift.protocol.request_fields import MAX_MESSAGES
from chairlift.protocol.responses.compaction_item import is_kept, num_compacted, summary_of
from chairlift.protocol.responses.responses_request_fields import OTHER_ITEMS, TOOL_ITEMS, item_type
from chairlift.protocol.translation.base import Json

CALL_MEMBERS = ("type", "id", "call_id", "status")
"""Members of a call of a tool of OpenAI's that are no arguments."""

SUMMARY_INTRODUCTION = "Summary of the conversation so far, in place of its answers, calls and results:\n\n"
"""First line of the message that shows the model a summary."""

ROLES = ("user", "system", "developer", "assistant")


class MessageList:
    """Collects messages.

    Attributes:
        messages: the messages so far.
        places: for each of them the place in the request.
        left_out: types of the items that have nothing for a message.
    """

    def __init__(self, chat_name: Callable[[str, Any], str] = lambda name, namespace: name) -> None:
        """Begin without messages; `chat_name` returns the name of a tool, from its name and its namespace."""
        self.messages: list[Json] = []
        self.places: list[str] = []
        self.left_out = LeftOutTypes()
        self._reasoning: list[str] = []
        self._chat_name = chat_name

    def add_message(self, role: str, content: Any, place: str) -> None:
        """Add a plain message."""
        self._append({"role": role, "content": content}, place)

    def add_items(self, items: list[Any], field: str, place: str = "") -> None:
        """Add items of a field, without those for which a summary behind them stands.

        Their place is `field[index]`, or `place` for all of them. Raises InvalidRequest.
        """
        num_left_out = num_compacted(items)
        for index, item in enumerate(items):
            at = place or f"{field}[{index}]"
            if not isinstance(item, dict):
                raise invalid_param(at, f"must be an object, got {format_short(item)}")
            if index >= num_left_out or is_kept(item):
                self._add(item, at)

    def finish(self) -> None:
        """End the list; reasoning without an answer behind it becomes an answer without text.

        A conversation without a message begins with an empty one of the user.
        """
        if self._reasoning:
            self._answer(self.places[-1] if self.places else "input")
        if not self.messages:
            self._append({"role": "user", "content": ""}, "input")

    def _add(self, item: Json, at: str) -> None:
        kind = item_type(item)
        match kind:
            case "message":
                self._add_role_message(item, at)
            case "function_call":
                name = self._chat_name(string_member(item, "name", at), item.get("namespace"))
                if not isinstance(arguments := item.get("arguments"), str | dict | None):
                    raise invalid_param(f"{at}.arguments", f"must be a string, got {format_short(arguments)}")
                self._add_call(item, at, "function", {"name": name, "arguments": arguments})
            case "custom_tool_call":
                name = self._chat_name(string_member(item, "name", at), item.get("namespace"))
                self._add_call(item, at, "custom", {"name": name, "input": string_member(item, "input", at)})
            case "function_call_output" | "custom_tool_call_output":
                self._add_result(item, at)
            case "tool_search_output" if isinstance(item.get("call_id"), str):
                self._add_result({**item, "output": {"tools": item.get("tools")}}, at)
            case "additional_tools":
                pass  # its tools are tools of the request
            case "reasoning":
                self._reasoning += [text for text in _reasoning_texts(item, at) if text]
            case None:
                raise invalid_param(f"{at}.type", "is missing")
            case str() if summary := summary_of(item):
                self._append({"role": "user", "content": SUMMARY_INTRODUCTION + summary}, at)
            case str(other) if other.endswith(("_call", "_call_output")) or other in OTHER_ITEMS:
                self._add_hosted(item, other, at)
            case _:
                raise invalid_param(
                    f"{at}.type", "must be message, function_call, function_call_output, custom_tool_call, "
                    f"custom_tool_call_output, reasoning or item_reference, got {format_short(kind)}",
                )  # fmt: skip

    def _add_hosted(self, item: Json, kind: str, at: str) -> None:
        """Add a call of a tool of OpenAI's that the client runs, or its result; other items are left out by name."""
        has_id = isinstance(item.get("call_id"), str)
        if has_id and kind.endswith("_call_output"):
            self._add_result(item, at)
        elif has_id and kind.endswith("_call"):
            arguments = {name: value for name, value in item.items() if name not in CALL_MEMBERS}
            called = {"name": kind.removesuffix("_call"), "arguments": orjson.dumps(arguments).decode()}
            self._add_call(item, at, "function", called)
        else:
            self.left_out.add("input", kind)

    def _add_result(self, item: Json, at: str) -> None:
        output = item.get("output")
        is_text = output is None or isinstance(output, str) or _has_parts(output)
        content = output if is_text else orjson.dumps(output).decode()
        self._append({"role": "tool", "content": content, "tool_call_id": string_member(item, "call_id", at)}, at)

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

    def _add_call(self, item: Json, at: str, kind: str, called: Json) -> None:
        call = {"id": string_member(item, "call_id", at), "type": kind, kind: called}
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


def tools_of_items(items: list[Any], field: str) -> Iterator[tuple[Any, str]]:
    """Yield the lists of tools that items add to a conversation, with their places."""
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") in TOOL_ITEMS:
            yield item.get("tools"), f"{field}[{index}].tools"


def _has_parts(output: Any) -> bool:
    """Return whether an output is a list of content parts, which chat completions check."""
    return isinstance(output, list) and all(isinstance(part, dict) and "type" in part for part in output)


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
