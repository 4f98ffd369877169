"""template_input: what templates read of calls and results is there, and the request's messages stay as they are."""

import json
from typing import Any

from chairlift.server.openai.template_messages import template_input
from chairlift.text.tool_formats.deepseek import KIMI
from chairlift.text.tool_formats.generic import GENERIC, prompt_of
from chairlift.text.tool_formats.json_calls import HERMES, MISTRAL
from support_server import open_server, run
from support_services import fake_service

USER = {"role": "user", "content": "Hello."}
TOOLS = [{"type": "function", "function": {"name": name}} for name in "fg"]


def call(call_id: str, name: str = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"x": 1}'}}


def shown(messages: list[Any], tool_format: Any = HERMES) -> list[Any]:
    before = json.dumps(messages)
    result, tools = template_input(messages, TOOLS, tool_format, "")
    assert json.dumps(messages) == before and (tools is None) == tool_format.is_generic
    return result


def test_calls_have_objects_and_a_text_and_results_have_names() -> None:
    messages = [
        USER, {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b", "g")]},
        {"role": "tool", "tool_call_id": "b", "content": "5"},
        {"role": "tool", "tool_call_id": "a", "content": "6", "name": "own"},
        {"role": "assistant", "content": "So.", "tool_calls": [call("c")]},
    ]  # fmt: skip
    user, called, first, second, again = shown(messages)
    assert user == USER and called["content"] == "" and again["content"] == "So."
    assert [each["function"]["arguments"] for each in called["tool_calls"]] == [{"x": 1}, {"x": 1}]
    assert (first["name"], second["name"]) == ("g", "own")
    assert (first["tool_call_id"], second["tool_call_id"]) == ("b", "a")


def test_ids_have_the_length_that_the_template_demands() -> None:
    long, short = "call_0123456789abcdef", "0123abcde"
    messages = [USER, {"role": "assistant", "tool_calls": [call(long), call(short)]}]
    messages += [{"role": "tool", "tool_call_id": each, "content": "5"} for each in (long, short)]
    result = shown(messages, MISTRAL)
    ids = [each["id"] for each in result[1]["tool_calls"]]
    assert ids == [each["tool_call_id"] for each in result[2:]] and ids[1] == short and len(ids[0]) == 9
    assert ids[0].isalnum() and ids[0] != short and result[0] == USER
    assert shown(messages)[2]["tool_call_id"] == long


def test_ids_name_the_function_where_the_template_writes_them_in_its_place() -> None:
    messages = [
        USER, {"role": "assistant", "tool_calls": [call("a"), call("b", "g")]},
        {"role": "tool", "tool_call_id": "b", "content": "5"}, {"role": "assistant", "tool_calls": [call("c")]},
    ]  # fmt: skip
    _, called, result, again = shown(messages, KIMI)
    assert [each["id"] for each in called["tool_calls"] + again["tool_calls"]] == [
        "functions.f:0", "functions.g:1", "functions.f:2",
    ]  # fmt: skip
    assert (result["tool_call_id"], result["name"]) == ("functions.g:1", "g")


def test_a_template_without_a_format_gets_no_tools_but_a_message_about_them() -> None:
    prompt = prompt_of(TOOLS)
    messages, tools = template_input([USER], TOOLS, GENERIC, "{% if role == 'system' %}")
    assert (messages, tools) == ([{"role": "system", "content": prompt}, USER], None)
    messages, tools = template_input([USER], TOOLS, GENERIC, "{{ messages }}")
    assert (messages, tools) == ([{"role": "user", "content": f"{prompt}\n\nHello."}], None)
    assert template_input([USER], None, GENERIC, "") == ([USER], None)
    assert template_input([USER], TOOLS, HERMES, "") == ([USER], TOOLS)
    assert template_input([5], TOOLS, GENERIC, "") == ([5], TOOLS), "the template's checks reject the message"


def test_the_prompt_of_a_model_without_a_format_is_tokenized_with_its_tools() -> None:
    async def scenario() -> Any:
        async with open_server(fake_service()) as server:
            return await server.http.post("/tokenize", json={"messages": [USER], "tools": TOOLS})

    tokens = run(scenario()).json()["tokens"]
    assert bytes(tokens).decode() == f"user={prompt_of(TOOLS)}\n\nHello.;a="
