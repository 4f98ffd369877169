"""read_message_request and read_count_request: bodies of Anthropic's API become bodies of the OpenAI API."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.anthropic.request import MessageRequest, read_count_request, read_message_request
from support_shares import for_each

BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
PREFILLED = [*BODY["messages"], {"role": "assistant", "content": "It"}]


def read(**fields: Any) -> MessageRequest:
    return read_message_request({**BODY, **fields})


def test_a_message() -> None:
    request = read()
    assert request.chat == {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    assert request.ignored == () and request.stop_sequences == ()
    assert request.names.own("messages[0].content") == "messages[0].content"
    assert request.names.own("prompt") == "messages"


def test_fields_become_those_of_chat_completions() -> None:
    request = read(
        system="Be brief.", temperature=0.5, top_p=0.9, top_k=4, seed=3, stream=True, tools=[TOOL], priority=2,
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True}, stop_sequences=["END"],
        metadata={"user_id": "u"}, cache_control={"type": "ephemeral"}, timeout=5, cache_salt="s",
        thinking={"type": "enabled"}, output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )  # fmt: skip
    assert request.chat == {
        "model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 3, "max_tokens": 9, "stream": True,
        "stream_options": {"include_usage": True}, "reasoning_effort": "medium", "priority": 2, "timeout": 5,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "schema": SCHEMA}, "stop": ["END"], "user": "u", "cache_salt": "s",
    }  # fmt: skip
    assert request.stop_sequences == ("END",) and request.ignored == ()
    assert request.names.own("stop") == "stop_sequences" and request.names.own("user") == "metadata.user_id"
    assert request.names.own("tools[0].function.parameters") == "tools[0].input_schema"
    assert request.names.own("tools[0].function.name") == "tools[0].name"
    assert request.names.own("tools.function.strict") == "tools.strict"
    assert request.names.own("response_format.schema") == "output_config.format.schema"
    assert request.names.own("messages[0].content") == "system.content"


def test_an_answer_goes_on_behind_a_text_of_the_assistant() -> None:
    request = read(messages=PREFILLED)
    assert request.chat["continue_final_message"] is True
    assert request.names.own("continue_final_message") == "messages[1]"


def test_a_choice_of_a_tool_that_is_left_out_has_no_effect() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    for tools in ([hosted], [hosted, TOOL]):
        request = read(tools=tools, tool_choice={"type": "tool", "name": "web_search"})
        assert "tool_choice" not in request.chat and request.ignored == ("tools.web_search_20250305", "tool_choice")


@for_each(("fields", "effort", "name"), [
    ({}, None, "thinking"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "medium", "thinking"),
    ({"thinking": {"type": "adaptive", "display": "summarized"}}, "medium", "thinking"),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max", "output_config.effort"),
    ({"output_config": {"effort": "low", "format": None}}, "low", "output_config.effort"),
    ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "none", "thinking"),
])  # fmt: skip
def test_thinking_is_the_reasoning_effort(fields: dict[str, Any], effort: str | None, name: str) -> None:
    request = read(**fields)
    assert request.chat.get("reasoning_effort") == effort and request.names.own("reasoning_effort") == name


def test_thinking_may_be_left_out_of_the_response() -> None:
    assert read(thinking={"type": "disabled"}).chat["include_reasoning"] is False
    assert read(thinking={"type": "enabled", "display": "omitted"}).chat["include_reasoning"] is False
    for display in (None, "summarized", "updates", ""):
        request = read(thinking={"type": "adaptive", "display": display})
        assert "include_reasoning" not in request.chat
        assert request.ignored == (() if display in (None, "summarized") else ("thinking.display",))


def test_the_older_name_of_the_format() -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    request = read(output_format=form)
    assert request.chat["response_format"] == form and request.names.own("response_format") == "output_format"


def test_fields_without_effect_are_named() -> None:
    request = read(
        service_tier="auto", unknown=1, thinking={"type": "enabled", "budget_tokens": 2048},
        output_config={"verbosity": 1}, metadata={"user_id": None, "a": 1}, tools=[{**TOOL, "defer_loading": True}],
    )  # fmt: skip
    assert set(request.ignored) == {
        "service_tier", "unknown", "thinking.budget_tokens", "output_config.verbosity", "metadata.a",
        "tools.defer_loading",
    }  # fmt: skip


@for_each(("fields", "param"), [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": None}, "messages"),
    ({"model": 7}, "model"),
    ({"system": 7}, "system"),
    ({"stream": "yes"}, "stream"),
    ({"stop_sequences": "END"}, "stop_sequences"),
    ({"metadata": "u"}, "metadata"),
    ({"thinking": True}, "thinking"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": ["enabled"]}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "display": []}}, "thinking.display"),
    ({"thinking": {"type": "enabled", "display": True}}, "thinking.display"),
    ({"output_config": []}, "output_config"),
    ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_schema", "schema": "{}"}}}, "output_config.format.schema"),
    ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
    ({"tools": {}}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
])  # fmt: skip
def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read(**fields)
    assert raised.value.details["param"] == param and param in raised.value.message


def test_a_count_has_what_makes_the_prompt() -> None:
    request = read_count_request({
        "model": "m", "messages": PREFILLED, "system": "s", "tools": [TOOL], "max_tokens": 5,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "thinking": {"type": "disabled"},
        "output_format": {"type": "json_schema", "schema": SCHEMA}, "chat_template_kwargs": {"a": 1},
    })  # fmt: skip
    assert request.chat == {
        "model": "m", "continue_final_message": True, "tool_choice": "required", "reasoning_effort": "none",
        "messages": [{"role": "system", "content": "s"}, *PREFILLED], "chat_template_kwargs": {"a": 1},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "response_format": {"type": "json_schema", "schema": SCHEMA},
    }  # fmt: skip
    assert request.ignored == ("max_tokens",)
    with pytest.raises(InvalidRequest, match="stream"):
        read_count_request({**BODY, "stream": True})
