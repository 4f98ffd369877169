"""MessageList: the items of a conversation of the Responses API as messages of chat completions.

reasoning, message, function_call, function_call  ──>  one message of the assistant, with its reasoning and calls
function_call_output                              ──>  a message of the role tool
compaction                                        ──>  a message of the user with the summary, behind it the calls
                                                       before it whose result follows
"""

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import call_arguments, format_short, string_member
from chairlift.protocol.left_out_types import LeftOutTypes, unread_members
from chairlift.protocol.request_fields import MAX_MESSAGES
from chairlift.protocol.responses.compaction_item import is_kept, num_compacted, open_calls, summary_of
from chairlift.protocol.responses.responses_request_fields import OTHER_ITEMS, TOOL_ITEMS, item_type
from chairlift.protocol.translation.base import Json

CALL_MEMBERS = ("type", "id", "call_id", "status")
"""Members of a call of a tool of OpenAI's that are no arguments."""

SUMMARY_INTRODUCTION = "Summary of the conversation so far, in place of its answers, calls and results:\n\n"
"""First line of the message that shows the model a summary."""

ROLES = ("user", "system", "developer", "assistant")

PUBLISHED_MEMBERS = ("type", "role", "content", "id", "status", "phase", "name")
"""Members of a message of OpenAI's; none but the role and the content has anything for the model."""


class MessageList:
    """Collects messages.

    Attributes:
        messages: the messages so far.
        places: for each of them the place in the request.
        paths: beginning of a path in `messages` -> that in the request, where a place does not say it.
        left_out: types of the items that have nothing for a message, and members of messages that nothing reads.
    """

    def __init__(self, chat_name: Callable[[str, Any], str] = lambda name, namespace: name) -> None:
        """Begin without messages; `chat_name` returns the name of a tool, from its name and its namespace."""
        self.messages: list[Json] = []
        self.places: list[str] = []
        self.paths: dict[str, str] = {}
        self.left_out = LeftOutTypes()
        self._reasoning: list[str] = []
        self._chat_name = chat_name

    def add_message(self, role: str, content: Any, place: str) -> None:
        """Add a plain message."""
        self._append({"role": role, "content": content}, place)

    def add_items(self, items: list[Any], places: list[str]) -> None:
        """Add the items of a conversation, without those for which a summary behind them stands.

        `places` has for each item its place in the request. Raises InvalidRequest.
        """
        for item, at in zip(items, places, strict=True):
            if not isinstance(item, dict):
                raise invalid_param(at, f"must be an object, got {format_short(item)}")
        num_left_out = num_compacted(items)
        for index, item in enumerate(items):
            if index >= num_left_out or is_kept(item):
                self._add(item, places[index])
            if index == num_left_out:  # it is the summary, if there is one
                for number in open_calls(items[:num_left_out]):
                    self._add(items[number], places[number])

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
                arguments = call_arguments(item.get("arguments"), f"{at}.arguments")
                self._add_call(item, at, "function", {"name": name, "arguments": arguments})
                if isinstance(arguments, dict):
                    self.paths[f"{self._last_call()}.function.arguments"] = f"{at}.arguments"
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
        content = result_content(item.get("output"))
        self._append({"role": "tool", "content": content, "tool_call_id": string_member(item, "call_id", at)}, at)
        if isinstance(content, list):
            self.paths[f"messages[{len(self.messages) - 1}].content"] = f"{at}.output"

    def _add_role_message(self, item: Json, at: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in ROLES:
            raise invalid_param(
                f"{at}.role", f"must be {', '.join(ROLES[:-1])} or {ROLES[-1]}, got {format_short(role)}"
            )
        for name in unread_members(item, PUBLISHED_MEMBERS):
            self.left_out.add("input", name)
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

    def _last_call(self) -> str:
        """Return the path of the call that was added last."""
        return f"messages[{len(self.messages) - 1}].tool_calls[{len(self.messages[-1]['tool_calls']) - 1}]"

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


def result_content(output: Any) -> Any:
    """Return the output of a call as a message has it: a text, a list of content parts, or None."""
    return output if output is None or isinstance(output, str) or _has_parts(output) else orjson.dumps(output).decode()


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
