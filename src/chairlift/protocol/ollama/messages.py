"""chat_messages: the conversation of a request of Ollama's API as messages of chat completions.

Calls and results have no ids there: a result belongs to a call by the name of its tool, or by its place.
"""

from collections import OrderedDict, deque
from typing import Any

import orjson

from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import call_arguments, format_short
from chairlift.protocol.request_fields import MAX_MESSAGES
from chairlift.protocol.translation.base import Json

ROLES = ("system", "user", "assistant", "tool")

MESSAGE_MEMBERS = {".reasoning_content": ".thinking"}
"""Beginning of a path within a message of chat completions -> that within one of Ollama's."""

IMAGES = "is not supported: the model of this server reads text only; send none"

_READ = frozenset({"role", "content", "images"})
_READ_BY_ROLE = {
    "assistant": _READ | {"thinking", "tool_calls"}, "tool": _READ | {"tool_name", "name", "tool_call_id"},
}  # fmt: skip
"""Keys of a message that are translated; chat completions get others as they are, and name those without effect."""


class _Calls:
    """The calls of a conversation so far, with their ids. Each method takes constant time."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._open: OrderedDict[str, None] = OrderedDict()
        self._open_of_tool: dict[str, deque[str]] = {}
        self._last_of_tool: dict[str, str] = {}

    def add(self, name: str, given_id: Any) -> str:
        """Add a call; return its own id, or else a new one."""
        is_own = isinstance(given_id, str) and given_id != "" and given_id not in self._names
        call_id = str(given_id) if is_own else f"call_{len(self._names)}"
        self._names[call_id] = name
        self._open[call_id] = None
        self._open_of_tool.setdefault(name, deque()).append(call_id)
        self._last_of_tool[name] = call_id
        return call_id

    def answer(self, name: str, given_id: Any) -> str | None:
        """Return the id of the call that a result belongs to, None where there is no call.

        It is the first one of its tool without a result, else the first one without a result, else the last one.
        """
        call_id: str | None = given_id if isinstance(given_id, str) and given_id in self._names else None
        if call_id is None:
            call_id = self._first_open(name) or next(iter(self._open), None) or self._last_of_tool.get(name)
        if call_id is None:
            call_id = next(reversed(self._names), None)
        if call_id is not None:
            self._open.pop(call_id, None)
        return call_id

    def _first_open(self, name: str) -> str | None:
        waiting = self._open_of_tool.get(name, deque())
        while waiting and waiting[0] not in self._open:
            waiting.popleft()
        return waiting[0] if waiting else None


def chat_messages(messages: Any) -> list[Json]:
    """Return the messages, [] for None. Raises InvalidRequest that names the place."""
    if messages is None:
        return []
    if not isinstance(messages, list):
        raise invalid_param("messages", f"must be a list of messages, got {format_short(messages)}")
    if len(messages) > MAX_MESSAGES:
        raise invalid_param("messages", f"has {len(messages)} messages, the limit is {MAX_MESSAGES}")
    calls = _Calls()
    return [_message(message, f"messages[{index}]", calls) for index, message in enumerate(messages)]


def check_images(images: Any, at: str) -> None:
    """Raise InvalidRequest unless there are none."""
    if images is not None and images != []:
        raise invalid_param(at, IMAGES)


def _message(message: Any, at: str, calls: _Calls) -> Json:
    if not isinstance(message, dict):
        raise invalid_param(at, f"must be an object, got {format_short(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise invalid_param(f"{at}.role", f"must be system, user, assistant or tool, got {format_short(role)}")
    content = message.get("content")
    if not isinstance(content, str) and not (content is None and role != "user"):
        raise invalid_param(f"{at}.content", f"must be a string, got {format_short(content)}")
    check_images(message.get("images"), f"{at}.images")
    read = _READ_BY_ROLE.get(role, _READ)
    others = {name: value for name, value in message.items() if name not in read}
    plain = {"role": role, "content": content or "", **others}
    if role == "assistant":
        return plain | _reasoning(message.get("thinking"), at) | _tool_calls(message.get("tool_calls"), at, calls)
    return plain | _result(message, at, calls) if role == "tool" else plain


def _reasoning(thinking: Any, at: str) -> Json:
    if not isinstance(thinking, str | None):
        raise invalid_param(f"{at}.thinking", f"must be a string, got {format_short(thinking)}")
    return {"reasoning_content": thinking} if thinking else {}


def _tool_calls(given: Any, at: str, calls: _Calls) -> Json:
    if given is None or given == []:
        return {}
    if not isinstance(given, list):
        raise invalid_param(f"{at}.tool_calls", f"must be a list, got {format_short(given)}")
    return {"tool_calls": [_call(call, f"{at}.tool_calls[{index}]", calls) for index, call in enumerate(given)]}


def _call(call: Any, at: str, calls: _Calls) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise invalid_param(f"{at}.function", f"must be an object, got {format_short(function)}")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise invalid_param(f"{at}.function.name", f"must be a string, got {format_short(name)}")
    arguments = call_arguments(arguments, f"{at}.function.arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return {
        "id": calls.add(name, call.get("id")), "type": "function", "function": {"name": name, "arguments": text},
    }  # fmt: skip


def _result(message: Json, at: str, calls: _Calls) -> Json:
    name = message.get("tool_name") or message.get("name")
    if not isinstance(name, str | None):
        raise invalid_param(f"{at}.tool_name", f"must be a string, got {format_short(name)}")
    call_id = calls.answer(name or "", message.get("tool_call_id"))
    if call_id is None:
        raise invalid_param(at, "has the role tool, but no message of the assistant before it has a tool call")
    return {"tool_call_id": call_id}
