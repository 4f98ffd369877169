"""ChatDeltaBuilder: splits the text of one chat choice into content, reasoning and tool calls."""

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chairlift.core.engine_output import FinishReason
from chairlift.text.reasoning_parser import ReasoningDelta, ReasoningParser
from chairlift.text.tool_formats.scanner import THOUGHT_SEPARATOR
from chairlift.text.tool_formats.tool_call_parser import (
    CustomCallInput,
    CustomCallStart,
    Piece,
    ReasoningText,
    TextDelta,
    ToolCallArguments,
    ToolCallParser,
    ToolCallStart,
)

Delta = dict[str, Any]
CALL_ID_CHARS = 24
CALLED_TEXTS = {"function": "arguments", "custom": "input"}
"""Type of a call -> its member that streams."""


def random_call_key() -> bytes:
    """Return a key that no other choice has."""
    return secrets.token_bytes(16)


class ChatDeltaBuilder:
    """Builds OpenAI's deltas of one choice as its text arrives, or one message from the whole text.

    Attributes:
        calls: number of tool calls so far.
    """

    def __init__(
        self,
        calls: ToolCallParser | None = None,
        reasoning: ReasoningParser | None = None,
        *,
        includes_reasoning: bool = True,
        allows_parallel_calls: bool = True,
        num_id_chars: int = 0,
        call_key: Callable[[], bytes] = random_call_key,
    ):
        """Start a choice; without a parser, calls or reasoning stay text.

        `includes_reasoning` says whether reasoning is part of the response, `allows_parallel_calls` whether more
        than one call may come, `num_id_chars` the length of their ids. `call_key` returns the bytes from which the ids
        are derived; it is called for the first call. An equal key gives equal ids, also on another replica.
        """
        self._tool_parser = calls
        self._reasoning_parser = reasoning
        self._includes_reasoning = includes_reasoning
        self._allows_parallel_calls = allows_parallel_calls
        self._num_id_chars = num_id_chars
        self._make_call_key, self._call_key = call_key, b""
        self._has_reasoning = False  # before that which the parser of calls reads
        self.calls = 0

    def push(self, delta: str) -> list[Delta]:
        """Add new text; return its deltas."""
        if self._reasoning_parser is None and self._tool_parser is None:
            return [{"content": delta}] if delta else []
        return self._reasoning_deltas(
            ReasoningDelta(content=delta) if self._reasoning_parser is None else self._reasoning_parser.push(delta)
        )

    def finish(self, delta: str) -> list[Delta]:
        """Add the last text; return its deltas and the text that the parsers held back."""
        deltas = self.push(delta)
        if self._reasoning_parser is not None:
            deltas += self._reasoning_deltas(self._reasoning_parser.flush())
        if self._tool_parser is not None:
            deltas += self._tool_deltas(self._tool_parser.flush())
        return deltas

    def reason(self, reason: FinishReason) -> str:
        """Return OpenAI's finish_reason."""
        return "tool_calls" if self.calls and reason is FinishReason.STOP else str(reason)

    def message(self, text: str) -> dict[str, Any]:
        """Return the message of a whole text."""
        content = thought = ""
        calls: list[dict[str, Any]] = []
        for delta in self.finish(text):
            content += delta.get("content", "")
            thought += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append({name: value for name, value in call.items() if name != "index"})
                else:
                    _extend(calls[-1], call)
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        return message

    def _reasoning_deltas(self, delta: ReasoningDelta) -> list[Delta]:
        deltas: list[Delta] = []
        if delta.reasoning and self._includes_reasoning:
            self._has_reasoning = True
            deltas.append({"reasoning_content": delta.reasoning})
        if delta.content:
            deltas += (
                [{"content": delta.content}]
                if self._tool_parser is None
                else self._tool_deltas(self._tool_parser.push(delta.content))
            )
        return deltas

    def _tool_deltas(self, pieces: list[Piece]) -> list[Delta]:
        deltas: list[Delta] = []
        for piece in pieces:
            match piece:
                case (
                    ToolCallStart(index) | ToolCallArguments(index) | CustomCallStart(index) | CustomCallInput(index)
                ) if index and not self._allows_parallel_calls:
                    continue
                case TextDelta(text):
                    deltas.append({"content": text})
                case ReasoningText(text) if self._includes_reasoning:
                    separator = THOUGHT_SEPARATOR if self._has_reasoning else ""
                    self._has_reasoning = False
                    deltas.append({"reasoning_content": separator + text})
                case ToolCallStart(index, name):
                    deltas.append(self._call_start(index, "function", {"name": name, "arguments": ""}))
                case CustomCallStart(index, name):
                    deltas.append(self._call_start(index, "custom", {"name": name, "input": ""}))
                case ToolCallArguments(index, text):
                    deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
                case CustomCallInput(index, text):
                    deltas.append({"tool_calls": [{"index": index, "custom": {"input": text}}]})
        return deltas

    def _call_start(self, index: int, kind: str, called: dict[str, str]) -> Delta:
        """Return the delta of the start of a call of a type."""
        self.calls += 1
        return {"tool_calls": [{"index": index, "id": self._new_id(), "type": kind, kind: called}]}

    def _new_id(self) -> str:
        """Return the id of a new call: OpenAI's form, or as many characters as the chat template demands."""
        self._call_key = self._call_key or self._make_call_key()
        digest = hashlib.sha256(b"%b %d" % (self._call_key, self.calls)).hexdigest()
        return digest[: self._num_id_chars] if self._num_id_chars else f"call_{digest[:CALL_ID_CHARS]}"


def _extend(call: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add more of the text of a call to it."""
    for kind, name in CALLED_TEXTS.items():
        if kind in part:
            call[kind][name] += part[kind][name]


def merged_delta(deltas: Sequence[Delta]) -> Delta:
    """Return one delta with the parts of several: texts are joined, calls with an equal index are one entry."""
    if len(deltas) == 1:
        return deltas[0]
    merged: Delta = {}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for name, value in delta.items():
            if name != "tool_calls":
                merged[name] = merged.get(name, "") + value
                continue
            for part in value:
                if (call := calls.get(part["index"])) is None:
                    called = {name: dict(part[name]) for name in CALLED_TEXTS if name in part}
                    calls[part["index"]] = {**part, **called}
                else:
                    _extend(call, part)
    return merged | ({"tool_calls": list(calls.values())} if calls else {})
