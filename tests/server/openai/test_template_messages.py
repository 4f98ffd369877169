"""template_input: what templates read of calls and results is there, and the request's messages stay as they are."""

import json
from pathlib import Path
from typing import Any

from chairlift.server.openai.normalize_messages import normalize_messages
from chairlift.server.openai.template_messages import template_input
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.tool_formats.generic import GENERIC
from chairlift.text.tool_formats.generic_prompt import prompt_of
from chairlift.text.tool_formats.harmony import HARMONY
from chairlift.text.tool_formats.json_calls import HERMES, MISTRAL
from chairlift.text.tool_formats.marked_calls import KIMI
from support_server import open_server, run
from support_services import AsciiTokenizer, fake_service

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


def arguments_shown(arguments: str, tool_format: Any, template: str) -> Any:
    cut = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call("b"), cut]}]
    result, _ = template_input(messages, None, tool_format, template)
    first, second = result[1]["tool_calls"]
    assert first["function"]["arguments"] == {"x": 1}
    return second["function"]["arguments"]


def test_arguments_that_were_cut_off_are_text_where_the_template_takes_text_and_else_an_object() -> None:
    cut = '{"city": "Par'
    for template in ("{{ call.arguments | tojson }}", "{% for k, v in call.arguments.items() %}{% endfor %}", ""):
        assert arguments_shown(cut, HERMES, template) == {"arguments": cut}
    for template in ("{% if tool_call.arguments is string %}", "{% if call.function.arguments is not mapping -%}"):
        assert arguments_shown(cut, HERMES, template) == cut
    assert arguments_shown(cut, GENERIC, "{{ tools }}") == cut, "the generic format writes it as JSON"


def test_a_developers_message_is_one_of_the_system_where_the_template_does_not_know_developers() -> None:
    developer, system = ({"role": role, "content": "Be brief."} for role in ("developer", "system"))
    for template, expected in (
        ("{% if role == 'system' %}", system), ("{% if role in ('system', 'developer') %}", developer), ("", developer),
    ):  # fmt: skip
        assert template_input([developer, USER], None, HERMES, template) == ([expected, USER], None)


def test_a_template_without_a_format_gets_no_tools_but_a_message_about_them() -> None:
    prompt = prompt_of(TOOLS)
    messages, tools = template_input([USER], TOOLS, GENERIC, "{% if role == 'system' %}")
    assert (messages, tools) == ([{"role": "system", "content": prompt}, USER], None)
    messages, tools = template_input([USER], TOOLS, GENERIC, "{{ messages }}")
    assert (messages, tools) == ([{"role": "user", "content": f"{prompt}\n\nHello."}], None)
    assert template_input([USER], None, GENERIC, "") == ([USER], None)
    assert template_input([USER], TOOLS, HERMES, "") == ([USER], TOOLS)
    assert template_input([5], TOOLS, GENERIC, "") == ([5], TOOLS), "the template's checks reject the message"


def test_without_a_tool_to_call_a_template_that_knows_none_gets_calls_and_results_as_text() -> None:
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call("a")]},
        {"role": "tool", "tool_call_id": "a", "content": "5"},
    ]
    result, tools = template_input(messages, None, GENERIC, "{{ messages }}")
    assert tools is None and [each["role"] for each in result] == ["user", "assistant", "user"]
    assert not any("tool_calls" in each for each in result) and '{"tool_calls": [{"name": "f"' in result[1]["content"]
    shown, _ = template_input(messages, None, GENERIC, "{% for tool in tools %}")
    assert shown[1]["tool_calls"] and shown[2]["role"] == "tool", "a template with tools has a form of its own"


def test_the_prompt_of_a_model_without_a_format_is_tokenized_with_its_tools() -> None:
    async def scenario() -> Any:
        async with open_server(fake_service()) as server:
            return await server.http.post("/tokenize", json={"messages": [USER], "tools": TOOLS})

    tokens = run(scenario()).json()["tokens"]
    assert bytes(tokens).decode() == f"user={prompt_of(TOOLS)}\n\nHello.;a="


def test_a_template_that_takes_text_or_thinking_beside_a_call_gets_both_as_thinking() -> None:
    """Our own answer, echoed: GPT-OSS's template rejects its three parts together."""
    source = (Path(__file__).parents[2] / "text/chat_templates/gpt-oss.jinja").read_text(encoding="utf-8")
    template = ChatTemplate({"default": source}, AsciiTokenizer())
    answer = {"role": "assistant", "content": "I look.", "reasoning_content": "Look it up.", "tool_calls": [call("a")]}
    parts = {**answer, "content": [{"type": "text", "text": "I look."}], "thinking": "Look it up."}
    for echoed in (answer, parts):
        messages, _ = normalize_messages([USER, echoed, {"role": "tool", "tool_call_id": "a", "content": "5"}], source)
        prepared, _ = template_input(messages, TOOLS, HARMONY, source)
        text = template.render(prepared).text
        assert "<|channel|>analysis<|message|>Look it up.\n\nI look.<|end|>" in text
    for alone in ({"content": "I look."}, {"content": "", "reasoning_content": "Look it up."}):
        message = {"role": "assistant", "tool_calls": [call("a")], **alone}
        [_, prepared_one], _ = template_input([USER, message], TOOLS, HARMONY, source)
        assert {key: prepared_one[key] for key in alone} == alone
    assert template_input([USER, answer], TOOLS, HARMONY, "")[0][1]["content"] == "I look."
