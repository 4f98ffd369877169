"""ToolsAndStructuredOutput: tools, a structured output, and both in one request."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.server.openai.chat_request import read_chat
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.gemma import GEMMA
from chairlift.text.tool_formats.generic import GENERIC
from chairlift.text.tool_formats.json_calls import HERMES, LLAMA3, MISTRAL
from support_request_bodies import CHAT_BODY, TOOL, chat, completion, unset
from support_shares import for_each

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


@for_each(("strict", "choice", "ignored"), [
    (True, "auto", ("tools.function.strict",)), (True, None, ("tools.function.strict",)), (True, "required", ()),
    (True, "none", ()), (False, "auto", ()), (None, "auto", ()),
])  # fmt: skip
def test_a_strict_schema_that_nothing_enforces_is_named(strict: Any, choice: Any, ignored: tuple[str, ...]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": strict}}
    body = {**CHAT_BODY, "tools": [tool], "tool_choice": choice}
    assert read_chat(body, GEMMA).ignored == ignored
    assert read_chat(body, MISTRAL).ignored == read_chat(body, LLAMA3).ignored == ()


def test_tools_change_what_the_sampler_is_asked_for() -> None:
    assert chat(tools=[TOOL]).params == unset()
    assert chat(tools=[TOOL], tool_choice="none").params == unset()
    forced = chat(tools=[TOOL], tool_choice="required").params.structured
    assert forced is not None and forced.kind == "grammar"
    free = read_chat({**CHAT_BODY, "tools": [TOOL]}, MISTRAL)
    assert not free.params.skip_special_tokens, "the format of its tool calls has special tokens"
    assert not completion(tools=[TOOL]).params.structured


@for_each(("body", "format_", "offered", "ignored"), [
    ({"tools": [TOOL]}, HERMES, True, ()), ({"tools": [TOOL], "regex": "a"}, HERMES, True, ("tools",)),
    ({"tools": [TOOL], "regex": "a"}, GENERIC, False, ("tools",)), ({"regex": "a"}, HERMES, None, ()),
    ({"tools": [TOOL], "tool_choice": "none", "regex": "a"}, HERMES, False, ()),
])  # fmt: skip
def test_a_structured_output_leaves_no_room_for_calls(
    body: dict[str, Any], format_: ToolFormat, offered: bool | None, ignored: tuple[str, ...]
) -> None:
    request = read_chat({**CHAT_BODY, **body}, format_)
    assert request.ignored == ignored
    assert (None if request.tools is None else request.tools.tools is not None) == offered
    assert (request.params.structured is not None) == ("regex" in body)


def test_a_forced_call_excludes_a_structured_output() -> None:
    with pytest.raises(InvalidRequest, match="tool_choice cannot force a call"):
        chat(tools=[TOOL], tool_choice="required", regex="a")
