"""ScriptedAnswer: what the stand-in server answers to a request: the next call of a script, or the text at its end."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT = "The note says that lunch is at noon."
"""The text at the end of every script."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call of a tool of the client.

    Attributes:
        tool: the tool's name in the request, without its namespace.
        arguments: the arguments' object; of a custom tool its one string.
        text: what the answer says before the call.
    """

    tool: str
    arguments: Mapping[str, Any] | str
    text: str = ""

    @property
    def is_custom(self) -> bool:
        """Whether the tool takes one string instead of an object."""
        return isinstance(self.arguments, str)

    @property
    def input(self) -> str:
        """The arguments as they are sent in a call: JSON, or the string of a custom tool."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer: a text, and the call behind it or None.

    Attributes:
        text: the text of the answer, "" for none.
        call: the call of a tool.
        number: how many results of tools the request had; ids of calls have it.
    """

    text: str
    call: ScriptedCall | None
    number: int

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return f"call_{self.number}"


def choose_answer(
    script: Sequence[ScriptedCall], body: Mapping[str, Any], texts: Sequence[str] = (TEXT,), num_texts: int = 0
) -> ScriptedAnswer:
    """Return the answer to a request of any API: the script's call behind as many results as the request has.

    Requests without tools, such as those for a title, and those that have the results of all calls get a text: the one
    at `num_texts`, which is how many texts were sent before, or the last one.
    """
    number = sum(map(_num_results, _messages(body)))
    if body.get("tools") and number < len(script):
        return ScriptedAnswer(script[number].text, script[number], number)
    return ScriptedAnswer(texts[min(num_texts, len(texts) - 1)], None, number)


def _messages(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the messages or items of a request; a string is one message of the user."""
    given = body.get("messages", body.get("input", []))
    return [{"role": "user"}] if isinstance(given, str) else [each for each in given if isinstance(each, dict)]


def _num_results(message: Mapping[str, Any]) -> int:
    """Return how many results of tools a message or an item has."""
    if message.get("role") == "tool" or str(message.get("type", "")).endswith("_call_output"):
        return 1
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return sum(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks)
