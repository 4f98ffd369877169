"""plain_choice, allows_one_call: a tool_choice in the words of chat completions, whichever API's words it has."""

from typing import Any

from chairlift.core.validation import boolean

NONE, AUTO, REQUIRED, ANY = "none", "auto", "required", "any"
CHOICES = (NONE, AUTO, REQUIRED)
"""The words of chat completions. Others write `any` for `required`."""

SINGLE = "disable_parallel_tool_use"
NAMED_TOOL = "tool"
"""Type of the choice of one function in Anthropic's API."""


def allows_one_call(choice: Any) -> bool:
    """Return whether a choice in Anthropic's form allows one call at most. Raises InvalidRequest."""
    value = choice.get(SINGLE) if isinstance(choice, dict) else None
    return value is not None and boolean(f"tool_choice.{SINGLE}", value)


def plain_choice(choice: Any) -> Any:
    """Return a choice with the words of chat completions, and any other value as it is.

    `any`, and a word as the type of an object, are words of Mistral's and of Anthropic's API.
    """
    word = choice.get("type") if isinstance(choice, dict) else choice
    if word == ANY:
        return REQUIRED
    if isinstance(choice, dict) and word in CHOICES:
        return word
    return {**choice, "type": "function"} if isinstance(choice, dict) and word == NAMED_TOOL else choice
