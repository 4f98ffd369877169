"""read_response_request: a body of /v1/responses becomes one of chat completions."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, NotFound
from chairlift.protocol.responses.compaction_item import compaction_item
from chairlift.protocol.responses.input_items import SUMMARY_INTRODUCTION
from chairlift.protocol.responses.request import ResponseRequest, read_response_request
from chairlift.protocol.responses.response_store import ResponseStore
from support_shares import for_each

TOOL = {"type": "function", "name": "f", "description": "Do it.", "parameters": {"type": "object"}, "strict": True}


def read(kept: ResponseStore | None = None, /, **fields: Any) -> ResponseRequest:
    body = {"model": "m", "input": "Hi", **fields}
    return read_response_request(body, ResponseStore(10**6) if kept is None else kept, "tenant")


def test_a_text_is_a_message_of_the_user() -> None:
    request = read()
    assert request.chat == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert request.is_stored and request.ignored == () and request.names.own("messages[0].content") == "input.content"
    assert request.items == [{"type": "message", "role": "user", "content": "Hi"}]


def test_fields_become_those_of_chat_completions() -> None:
    request = read(
        instructions="Be brief.", max_output_tokens=9, temperature=0.5, seed=3, top_k=4, stream=True, tools=[TOOL],
        regex="[a-z]+", n=1, logprobs=False,
        tool_choice={"type": "function", "name": "f"}, reasoning={"effort": "low"}, top_logprobs=2, store=False,
        text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}},
    )  # fmt: skip
    assert request.chat == {
        "model": "m", "temperature": 0.5, "seed": 3, "top_k": 4, "regex": "[a-z]+", "max_completion_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True}, "reasoning_effort": "low", "logprobs": True, "top_logprobs": 2,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {key: value for key, value in TOOL.items() if key != "type"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema",
                            "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}},
    }  # fmt: skip
    assert not request.is_stored
    assert request.names.own("max_completion_tokens") == "max_output_tokens"
    assert request.names.own("tools[0].function.parameters") == "tools[0].parameters"
    assert request.names.own("messages[0].content") == "instructions.content"


def test_allowed_tools() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    assert read(tools=[TOOL], tool_choice=choice).chat["tool_choice"] == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
    }


def test_a_stored_conversation_comes_first_without_its_instructions() -> None:
    store = ResponseStore(10**6)
    items = read(instructions="Once").items
    output = [{"id": "msg_a_0", "type": "message", "role": "assistant", "content": "Hello"}]
    store.add("tenant", {"id": "resp_a", "output": output}, items)
    request = read(store, previous_response_id="resp_a", input="More", instructions="Now")
    assert [message["content"] for message in request.chat["messages"]] == ["Now", "Hi", "Hello", "More"]
    assert [request.names.own(f"messages[{index}]") for index in range(4)] == [
        "instructions", "previous_response_id", "previous_response_id", "input",
    ]  # fmt: skip
    assert request.items == [{"type": "message", "role": "user", "content": "More"}]
    referring = read(store, input=[{"type": "item_reference", "id": "msg_a_0"}])
    assert referring.items == output and referring.chat["messages"][0]["content"] == "Hello"
    with pytest.raises(NotFound):
        read(previous_response_id="resp_a")


def test_a_summary_in_the_input_stands_for_the_stored_conversation_too() -> None:
    store, tools = ResponseStore(10**6), {"type": "additional_tools", "tools": [TOOL]}
    answer = {"role": "assistant", "content": "Hello"}
    store.add("tenant", {"id": "resp_a", "output": [answer]}, [{"role": "user", "content": "Hi"}, tools])
    request = read(store, previous_response_id="resp_a", input=[answer, compaction_item("cmp_1", "S"), answer])
    assert [message["content"] for message in request.chat["messages"]] == ["Hi", SUMMARY_INTRODUCTION + "S", "Hello"]
    assert [tool["function"]["name"] for tool in request.chat["tools"]] == ["f"]


def test_fields_without_effect_are_named() -> None:
    request = read(
        truncation="auto", unknown=1, text={"verbosity": "low"}, reasoning={"summary": "auto"},
        include=["reasoning.encrypted_content"],
    )  # fmt: skip
    assert request.ignored == (
        "truncation",
        "unknown",
        "text.verbosity",
        "reasoning.summary",
        "include.reasoning.encrypted_content",
    )
    assert "logprobs" not in request.chat
    assert read(include=["message.output_text.logprobs"]).chat["logprobs"] is True
    assert not read(ResponseStore(0)).is_stored


@for_each(("fields", "param"), [
    ({"input": 7}, "input"), ({"instructions": 7}, "instructions"),
    ({"previous_response_id": 7}, "previous_response_id"), ({"previous_response_id": ""}, "previous_response_id"),
    ({"previous_response_id": "r" * 300}, "previous_response_id"),
    ({"tools": {}}, "tools"), ({"tools": [TOOL] * 129}, "tools"), ({"tools": [{"type": ""}]}, "tools[0].type"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [7]}]}, "tools[0].tools[0]"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [TOOL, {"type": ["mcp"]}]}, "tools[1].type"),
    ({"tool_choice": {}}, "tool_choice.type"), ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [7]}}, "tool_choice.tools[0]"),
    ({"text": []}, "text"), ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "schema": 1}}}, "text.format.schema"),
    ({"reasoning": "low"}, "reasoning"), ({"include": [7]}, "include"), ({"include": ["x"] * 33}, "include"),
    ({"top_logprobs": 21}, "top_logprobs"), ({"store": "yes"}, "store"), ({"stream": 1}, "stream"),
    ({"metadata": []}, "metadata"), ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ({"metadata": {"a" * 65: ""}}, "metadata"), ({"metadata": {"a": "b" * 513}}, "metadata"),
    ({"n": 2}, "n"), ({"response_format": {"type": "text"}}, "response_format"), ({"logprobs": True}, "logprobs"),
    ({"messages": [{"role": "user", "content": "Hi"}]}, "messages"), ({"functions": [{"name": "f"}]}, "functions"),
    ({"background": True}, "background"), ({"prompt": {"id": "x"}}, "prompt"),
])  # fmt: skip
def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.details["param"] == param and caught.value.message.startswith(param)
