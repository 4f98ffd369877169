"""Voice: one choice of a chat speaks; its text is told apart into answer, reasoning and tool calls."""

import secrets
from typing import Any

from chairlift.core.request import FinishReason
from chairlift.text.reasoning_parser import Reasoning, Told
from chairlift.text.tool_parser import Arguments, Call, Piece, Text, ToolCalls

Delta = dict[str, Any]


class Voice:
    """Makes OpenAI's deltas of the text of one choice, as it comes, or a message of all of it.

    Attributes:
        calls: how many tools were called.
    """

    def __init__(self, calls: ToolCalls | None = None, reasoning: Reasoning | None = None, *, several: bool = True):
        """Begin; without a reader of calls, or of reasoning, all of that is text. `several` allows several calls."""
        self._calls = calls
        self._reasoning = reasoning
        self._several = several
        self.calls = 0

    def push(self, delta: str) -> list[Delta]:
        """Take new text."""
        if self._reasoning is None and self._calls is None:
            return [{"content": delta}] if delta else []
        return self._told(Told(said=delta) if self._reasoning is None else self._reasoning.push(delta))

    def finish(self, delta: str) -> list[Delta]:
        """Take the last of the text, and say what was held back."""
        made = self.push(delta)
        if self._reasoning is not None:
            made += self._told(self._reasoning.flush())
        if self._calls is not None:
            made += self._pieces(self._calls.flush())
        return made

    def reason(self, reason: FinishReason) -> str:
        """Return OpenAI's word for why it ended."""
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
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        return message

    def _told(self, told: Told) -> list[Delta]:
        made: list[Delta] = [{"reasoning_content": told.thought}] if told.thought else []
        if told.said:
            made += [{"content": told.said}] if self._calls is None else self._pieces(self._calls.push(told.said))
        return made

    def _pieces(self, pieces: list[Piece]) -> list[Delta]:
        made: list[Delta] = []
        for piece in pieces:
            if not isinstance(piece, Text) and piece.index and not self._several:
                continue
            match piece:
                case Text(text):
                    made.append({"content": text})
                case Call(index, name):
                    self.calls += 1
                    function = {"name": name, "arguments": ""}
                    call = {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function"}
                    made.append({"tool_calls": [{**call, "function": function}]})
                case Arguments(index, text):
                    made.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        return made
