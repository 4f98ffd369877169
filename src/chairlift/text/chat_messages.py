"""ChatMessages: the messages of a conversation as a value, parsed once from what clients send.

Clients send answers back as they got them, from this server and from others: with null content, a refusal, reasoning
in fields or parts, annotations, and keys of their own. What a chat template gets is made from this value by
template_input.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from chairlift.core.chat_template_names_and_limits import REASONING_FIELDS, ROLES, TEXT_PARTS
from chairlift.core.validation import invalid_param
from chairlift.text.plain_json import plain_json

READ_KEYS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", *REASONING_FIELDS}
)
"""Keys of a message that the server or chat templates read."""

ANSWER_KEYS = frozenset({"annotations", "refusal"})
"""Keys of an answer that no chat template reads; the text of a refusal becomes the content."""

MAX_NAMED_KEYS = 64
"""Distinct keys without effect that are named in the response."""

REDACTED, REFUSAL = "redacted_thinking", "refusal"
REASONING_PARTS = ("thinking", "reasoning", REDACTED)
"""Types of content parts of an answer with its reasoning."""

FUNCTION, CUSTOM = "function", "custom"
INPUT = "input"
"""The parameter of the function that stands for a custom tool."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function in an answer.

    Attributes:
        id: its id, which the message with its result names.
        name: name of the function.
        arguments: an object; text that is no JSON object, because max_tokens had cut the call off, stays text.
        other: the call as the client sent it.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | str
    other: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the call as chat templates read it."""
        function = {**self.other.get(FUNCTION, {}), "name": self.name, "arguments": self.arguments}
        return {**self.other, "id": self.id, FUNCTION: function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message.

    Attributes:
        role: one of ROLES.
        content: its text, "" where it has none.
        reasoning: the reasoning of an answer, "" where it has none.
        calls: the calls of an answer.
        call_id: id of the call whose result this is, for the role tool.
        name: name of the author or of the function.
        other: members of the message that only some chat templates read.
    """

    role: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    other: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the message as chat templates read it; members without a value are absent."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            message |= dict.fromkeys(REASONING_FIELDS, self.reasoning)
        if self.calls:
            message["tool_calls"] = [call.as_json() for call in self.calls]
        if self.call_id:
            message["tool_call_id"] = self.call_id
        if self.name:
            message["name"] = self.name
        return {**message, **self.other}

    def with_text(self, text: str) -> "ChatMessage":
        """Return the message with a text behind its own, a blank line between them."""
        return replace(self, content=joined(self.content, text))


@dataclass(frozen=True, slots=True)
class ChatMessages:
    """The messages of a conversation.

    Attributes:
        messages: at least one.
        unread: names of their members that have no effect.
    """

    messages: tuple[ChatMessage, ...]
    unread: tuple[str, ...] = ()

    @classmethod
    def parse(cls, messages: Sequence[Any], template: str = "") -> "ChatMessages":
        """Parse messages of the chat completions API.

        A result belongs to a call before it; one without an id belongs to the first call without a result. Calls and
        results of the older form, function_call and the role function, become those of the newer one. `template` is the
        text of the chat template, which may read further members.
        Raises InvalidRequest naming the error and its place (`messages[3].content`).
        """
        parser = _Parser()
        parsed = tuple(parser.message(message, f"messages[{index}]") for index, message in enumerate(messages))
        return cls(parsed, tuple(f"messages.{name}" for name in parser.unread if name not in template))

    def as_json(self) -> list[dict[str, Any]]:
        """Return the messages as chat templates read them."""
        return [message.as_json() for message in self.messages]


class _Parser:
    """Parses the messages of one conversation in their order.

    Attributes:
        unread: members that neither the server nor most chat templates read.
    """

    def __init__(self) -> None:
        self.unread: dict[str, None] = {}
        self._names: dict[str, str] = {}  # id of a call -> its function
        self._num_new_ids = 0
        self._open: OrderedDict[str, None] = OrderedDict()  # ids of the calls that have no result yet
        self._open_of: dict[str, OrderedDict[str, None]] = {}  # the same of each function

    def message(self, message: Any, at: str) -> ChatMessage:
        """Parse one message. Raises InvalidRequest."""
        if not isinstance(message, Mapping):
            raise invalid_param(at, f"must be an object with role and content, got {type(message).__name__}")
        plain: dict[str, Any] = {name: value for name, value in plain_json(message, at).items() if value is not None}
        role = checked_role(plain, at)
        is_answer = role == "assistant"
        for member in plain:
            if member not in READ_KEYS and member not in ANSWER_KEYS:
                self._note_unread(member)
        name = plain["name"] if isinstance(plain.get("name"), str) else ""
        read = {"role", "content", *(("name",) if name else ()), *(ANSWER_KEYS if is_answer else ())}
        parsed = ChatMessage(role=role, name=name)
        if is_answer:
            read |= {"tool_calls", "function_call", *REASONING_FIELDS}
            parsed = self._answer(parsed, plain, at)
        else:
            if role == "tool" or (role == FUNCTION and name):
                read.add("tool_call_id")
                parsed = self._result(parsed, plain.get("tool_call_id"), at)
            if "content" not in plain and parsed.role != "tool":
                raise invalid_param(f"{at}.content", "is missing")
            parsed = replace(parsed, content=_text(plain.get("content", ""), f"{at}.content", None))
        return replace(parsed, other={key: value for key, value in plain.items() if key not in read})

    def _answer(self, parsed: ChatMessage, plain: Mapping[str, Any], at: str) -> ChatMessage:
        refusal = plain.get("refusal")
        if not isinstance(refusal, str | None):
            raise invalid_param(f"{at}.refusal", f"must be a string or null, got {type(refusal).__name__}")
        thoughts: list[str] = []
        content = _text(plain.get("content", ""), f"{at}.content", thoughts)
        for name in REASONING_FIELDS:
            if name in plain and not isinstance(plain[name], str):
                self._note_unread(name)
        fields = (plain[name] for name in REASONING_FIELDS if isinstance(plain.get(name), str))
        calls = plain.get("tool_calls", [])
        if not isinstance(calls, list):
            raise invalid_param(f"{at}.tool_calls", f"must be a list, got {type(calls).__name__}")
        parsed_calls = [self._call(call, f"{at}.tool_calls[{number}]") for number, call in enumerate(calls)]
        older = plain.get("function_call")
        if not isinstance(older, dict | None):
            raise invalid_param(f"{at}.function_call", "must be an object")
        if older and not parsed_calls:
            parsed_calls = [self._call({"type": FUNCTION, FUNCTION: older}, at, f"{at}.function_call")]
        return replace(
            parsed, content=content or refusal or "", reasoning=next(fields, "\n".join(thoughts)),
            calls=tuple(parsed_calls),
        )  # fmt: skip

    def _call(self, call: Any, at: str, function_at: str = "") -> ToolCall:
        """Parse a call; one of a custom tool is a call of the function that stands for it. Raises InvalidRequest."""
        if isinstance(call, dict) and call.get("type") == CUSTOM:
            return self._custom_call(call, at)
        function = call.get(FUNCTION) if isinstance(call, dict) else None
        function_at = function_at or f"{at}.function"
        kind = call.get("type", FUNCTION) if isinstance(call, dict) else FUNCTION
        if function is None and kind != FUNCTION:
            raise invalid_param(f"{at}.type", f"must be function or custom, got {str(kind)[:40]!r}")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid_param(f"{function_at}.name", "must be a string")
        call_id = self._call_id(call, at)
        if not isinstance(arguments := function.get("arguments"), str | dict | None):
            message = f"must be a string that contains a JSON object, got {type(arguments).__name__}"
            raise invalid_param(f"{function_at}.arguments", message)
        self._add_call(call_id, function["name"])
        return ToolCall(call_id, function["name"], _parsed_arguments(arguments), call)

    def _custom_call(self, call: Mapping[str, Any], at: str) -> ToolCall:
        custom = call.get(CUSTOM)
        if not isinstance(custom, dict) or not isinstance(name := custom.get("name"), str):
            raise invalid_param(f"{at}.custom.name", "must be a string")
        call_id = self._call_id(call, at)
        if not isinstance(text := custom.get("input", ""), str):
            raise invalid_param(f"{at}.custom.input", f"must be a string, got {type(text).__name__}")
        self._add_call(call_id, name)
        return ToolCall(call_id, name, {INPUT: text}, {"type": FUNCTION})

    def _call_id(self, call: Mapping[str, Any], at: str) -> str:
        """Return the id of a call; one without an id gets one that is new in the conversation, of nine characters."""
        call_id = call.get("id")
        if not isinstance(call_id, str | None):
            raise invalid_param(f"{at}.id", f"must be a string, got {type(call_id).__name__}")
        while not call_id or (call_id in self._names and not call.get("id")):
            self._num_new_ids += 1
            call_id = f"call{self._num_new_ids:05}"
        return call_id

    def _add_call(self, call_id: str, name: str) -> None:
        self._close_call(call_id)
        self._names[call_id] = name
        self._open[call_id] = self._open_of.setdefault(name, OrderedDict())[call_id] = None

    def _close_call(self, call_id: str) -> None:
        """Note that a call has its result, if there is such a call."""
        if self._open.pop(call_id, self) is None:
            del self._open_of[self._names[call_id]][call_id]

    def _result(self, parsed: ChatMessage, call_id: Any, at: str) -> ChatMessage:
        """Return a result with the id of its call and the name of the function."""
        if parsed.role == FUNCTION:
            named = [each for each, name in self._names.items() if name == parsed.name]
            for each in named[-1:]:
                self._close_call(each)
            return replace(parsed, role="tool", call_id=named[-1]) if named else parsed
        if call_id is None or call_id == "":
            call_id = self._first_open(parsed.name)
        if not isinstance(call_id, str) or call_id not in self._names:
            raise invalid_param(f"{at}.tool_call_id", "must be the id of a tool call in an earlier assistant message")
        self._close_call(call_id)
        return replace(parsed, call_id=call_id, name=parsed.name or self._names[call_id])

    def _first_open(self, name: str) -> str | None:
        """Return the first call without a result, of a function if a result names it; None where there is none."""
        return next(iter(self._open_of.get(name, ()) if name else self._open), None)

    def _note_unread(self, name: str) -> None:
        if len(self.unread) < MAX_NAMED_KEYS:
            self.unread[name] = None


def checked_role(message: Mapping[str, Any], at: str) -> str:
    """Return the role of a message. Raises InvalidRequest."""
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid_param(f"{at}.role", f"must be one of {', '.join(ROLES)}, got {str(role)[:40]!r}")
    return role


def joined(*texts: str) -> str:
    """Return texts with a blank line between them; those that are empty are left out."""
    return "\n\n".join(filter(None, texts))


def reasoning_parts(message: ChatMessage) -> list[dict[str, Any]]:
    """Return the content of an answer with its reasoning as a part before the text."""
    thought = {"type": "thinking", "thinking": message.reasoning}
    return [thought, {"type": "text", "text": message.content}] if message.content else [thought]


def flat_content(content: Any, at: str) -> str:
    """Return a content, a text or a list of text parts, as one text: parts are joined by line breaks.

    Raises InvalidRequest naming the place.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid_param(at, f"must be a string or a list of text parts, got {type(content).__name__}")
    return "\n".join(_part_text(part, f"{at}[{index}]") for index, part in enumerate(content))


def _text(content: Any, at: str, thoughts: list[str] | None) -> str:
    """Return the text of a content; the reasoning among the parts of an answer goes to `thoughts`, None for others."""
    if not isinstance(content, list):
        return flat_content(content, at)
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        kind = kind if isinstance(kind, str) else ""
        if thoughts is not None and kind in REASONING_PARTS:
            thought = part.get(kind, part.get("text"))
            thoughts += [thought] if isinstance(thought, str) and kind != REDACTED else []
            continue
        is_text = kind in TEXT_PARTS or (thoughts is not None and kind == REFUSAL)
        as_text = {"type": "text", "text": part.get(REFUSAL if kind == REFUSAL else "text")} if is_text else part
        texts.append(_part_text(as_text, f"{at}[{index}]"))
    return "\n".join(texts)


def _part_text(part: Any, at: str) -> str:
    """Return the text of a content part, one of type text or a string. Raises InvalidRequest."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise invalid_param(at, f"must be a part of type 'text', got {str(kind)[:40]!r}")
    if not isinstance(text := part.get("text"), str):
        raise invalid_param(f"{at}.text", f"must be a string, got {type(text).__name__}")
    return text


def _parsed_arguments(arguments: str | dict[str, Any] | None) -> dict[str, Any] | str:
    """Return a call's arguments as an object, or as they are where they are not a JSON object.

    Parses strictly: orjson rejects NaN and 1e999, and json keeps integers of any size. An empty text is an empty
    object: OpenAI's own models write that for a call without arguments.
    """
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        orjson.loads(text := arguments or "{}")
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
