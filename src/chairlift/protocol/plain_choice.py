"""plain_choice: a tool_choice in the words of chat completions, whichever API's words a client uses."""

from typing import Any

NONE, AUTO, REQUIRED, ANY = "none", "auto", "required", "any"
CHOICES = (NONE, AUTO, REQUIRED)
"""The words of chat completions. Others write `any` for `required`."""

NAMED_TOOL = "tool"
"""Type of the choice of one function in Anthropic's API."""


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
