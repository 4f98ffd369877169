"""MessageList: items of a conversation become the messages that a chat template knows."""

import json
import typing
from typing import Any

import pytest
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.request_fields import MAX_MESSAGES
from chairlift.protocol.responses.compaction_item import compaction_item
from chairlift.protocol.responses.input_items import SUMMARY_INTRODUCTION, MessageList, tools_of_items
from chairlift.protocol.translation.base import FieldNames
from support_shares import for_each


def messages_of(items: list[Any]) -> MessageList:
    messages = MessageList()
    messages.add_items(items, [f"input[{index}]" for index in range(len(items))])
    messages.finish()
    return messages


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def test_what_belongs_to_one_answer_is_one_message() -> None:
    found = messages_of([
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": "Wait"},
        call(1), call(2),
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        call(3),
    ])  # fmt: skip
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in (1, 2, 3)]
    assert found.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Wait", "reasoning_content": "Hm.", "tool_calls": calls[:2]},
        {"role": "tool", "content": "one", "tool_call_id": "c1"},
        {"role": "tool", "content": [{"type": "input_text", "text": "two"}], "tool_call_id": "c2"},
        {"role": "assistant", "content": None, "tool_calls": calls[2:]},
    ]
    assert found.places == ["input[0]", "input[2]", "input[5]", "input[6]", "input[7]"]


def test_two_answers_in_a_row_stay_two() -> None:
    answers = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert messages_of(answers).messages == answers
    assert messages_of([call(1), answers[0]]).messages[1] == answers[0]


@for_each("arguments", [None, {"a": 1}, '{"a": 1}', ""])
def test_arguments_are_those_of_chat_completions(arguments: Any) -> None:
    (message,) = messages_of([{**call(1), "arguments": arguments}]).messages[-1:]
    assert message["tool_calls"][0]["function"]["arguments"] == arguments
    nameless = {name: value for name, value in call(1).items() if name != "arguments"}
    assert messages_of([nameless]).messages[-1]["tool_calls"][0]["function"]["arguments"] is None


def test_reasoning_belongs_to_what_follows() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Short."}]}
    first, second = messages_of(
        [{"role": "assistant", "content": "a"}, thought, {"role": "assistant", "content": "b"}]
    ).messages
    assert "reasoning_content" not in first and second["reasoning_content"] == "Short."
    alone = messages_of([{"role": "user", "content": "Hi"}, thought])
    assert alone.messages[1] == {"role": "assistant", "content": None, "reasoning_content": "Short."}
    before_user = messages_of([thought, {"role": "user", "content": "Hi"}]).messages
    assert [each["role"] for each in before_user] == ["assistant", "user"]
    empty = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    assert len(messages_of([empty, {"role": "user", "content": "Hi"}]).messages) == 1


@for_each("items", [[], [{"type": "reasoning", "summary": []}], [{"type": "compaction", "encrypted_content": "x"}]])
def test_a_conversation_without_a_message_begins_with_an_empty_one_of_the_user(items: list[Any]) -> None:
    assert messages_of(items).messages == [{"role": "user", "content": ""}]


def test_items_for_which_a_summary_behind_them_stands_are_left_out() -> None:
    ours = compaction_item("cmp_1", "S")
    found = messages_of([
        {"role": "user", "content": "Hi"}, call(1), {"type": "function_call_output", "call_id": "c1", "output": "x"},
        {"role": "assistant", "content": "a"}, {"type": "web_search_call"}, ours, {"role": "assistant", "content": "b"},
    ])  # fmt: skip
    assert found.messages == [
        {"role": "user", "content": "Hi"}, {"role": "user", "content": SUMMARY_INTRODUCTION + "S"},
        {"role": "assistant", "content": "b"},
    ]  # fmt: skip
    assert found.places == ["input[0]", "input[5]", "input[6]"] and found.left_out.names == ()
    with pytest.raises(InvalidRequest, match=r"input\[0\] must be an object"):
        messages_of([7, ours])


def test_the_result_of_a_call_may_follow_the_summary_of_what_was_before() -> None:
    ours, result = compaction_item("cmp_1", "S"), {"type": "function_call_output", "call_id": "c2", "output": "x"}
    user, done = {"role": "user", "content": "Hi"}, {"type": "function_call_output", "call_id": "c1", "output": "y"}
    found = messages_of([user, call(1), call(2), done, user, ours, result])
    assert [message["role"] for message in found.messages] == ["user", "user", "user", "assistant", "tool"]
    assert [each["id"] for each in found.messages[3]["tool_calls"]] == ["c2"]
    assert found.places == ["input[0]", "input[4]", "input[5]", "input[2]", "input[6]"]
    again = messages_of([user, call(2), ours, compaction_item("cmp_2", "T"), result])
    assert [message["role"] for message in again.messages] == ["user", "user", "assistant", "tool"]


@for_each(("members", "names"), [
    ({"tool_calls": [{"id": "c"}]}, ("input.tool_calls",)), ({"reasoning_content": "R"}, ("input.reasoning_content",)),
    ({"b": 0, "a": False}, ("input.b", "input.a")),
    ({"tool_calls": None, "reasoning_content": "", "annotations": [], "metadata": {}}, ()),
    ({"type": "message", "id": "m", "status": "completed", "phase": "final_answer", "name": "n"}, ()),
])  # fmt: skip
def test_members_of_a_message_that_nothing_reads_are_named(members: dict[str, Any], names: tuple[str, ...]) -> None:
    for role in ("assistant", "user", "system", "developer"):
        found = messages_of([{"role": role, "content": "t", **members}])
        assert found.left_out.names == names and found.messages == [{"role": role, "content": "t"}]


def test_the_place_of_arguments_and_of_an_output_in_the_request() -> None:
    parts = [{"type": "input_text", "text": "x"}]
    found = messages_of([
        {"role": "user", "content": "Hi"}, call(1), {**call(2), "arguments": {"a": 1}},
        {"type": "function_call_output", "call_id": "c1", "output": parts},
    ])  # fmt: skip
    names = FieldNames({}, found.places, paths=found.paths)
    assert names.own("messages[1].tool_calls[1].function.arguments.a") == "input[2].arguments.a"
    assert names.own("messages[2].content[0].text") == "input[3].output[0].text"


def test_calls_of_custom_tools_and_their_results() -> None:
    found = messages_of([
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
    ])  # fmt: skip
    assert found.messages == [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin Patch"}},
        ]},
        {"role": "tool", "content": "Done", "tool_call_id": "c1"},
    ]  # fmt: skip


@for_each(("kind", "member", "output"), [
    ("local_shell", {"action": {"type": "exec", "command": ["ls"]}}, "a.txt"),
    ("shell", {"action": {"commands": ["ls"]}}, [{"stdout": "a.txt", "stderr": ""}]),
    ("apply_patch", {"operation": {"type": "delete_file", "path": "a"}}, "Done"),
    ("computer", {"action": {"type": "wait"}}, {"type": "computer_screenshot", "image_url": "data:"}),
])  # fmt: skip
def test_calls_that_the_client_runs_are_calls_of_functions(kind: str, member: dict[str, Any], output: Any) -> None:
    answer, result = messages_of([
        {"type": f"{kind}_call", "id": "x", "call_id": "c1", "status": "completed", **member},
        {"type": f"{kind}_call_output", "call_id": "c1", "output": output},
    ]).messages  # fmt: skip
    (made,) = answer["tool_calls"]
    assert made["id"] == result["tool_call_id"] == "c1" and made["function"]["name"] == kind
    assert json.loads(made["function"]["arguments"]) == member
    assert result["content"] == (output if isinstance(output, str) else json.dumps(output, separators=(",", ":")))


@for_each("item", [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "results": None},
    {"type": "image_generation_call", "id": "ig_1", "result": "aGk="},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1"}, {"type": "mcp_call", "id": "mcp_1", "name": "f"},
    {"type": "mcp_list_tools", "tools": []}, {"type": "compaction", "encrypted_content": "x"},
    {"type": "program", "call_id": "c", "code": "1", "fingerprint": "x"}, {"type": "program_output", "call_id": "c"},
    {"type": "agent_message", "text": "x"}, {"type": "configuration_update"},
    {"type": "tool_search_call", "id": "x", "call_id": None}, {"type": "tool_search_output", "tools": []},
])  # fmt: skip
def test_items_of_tools_that_the_server_would_run_are_left_out_by_name(item: dict[str, Any]) -> None:
    found = messages_of([{"role": "user", "content": "Hi"}, item])
    assert len(found.messages) == 1 and found.left_out.names == (f"input.{item['type']}",)


def test_a_search_for_tools_has_its_result_and_added_tools_are_no_message() -> None:
    found = {"type": "function", "name": "f"}
    items = [
        {"type": "tool_search_call", "call_id": "c1", "arguments": {"query": "f"}, "execution": "client"},
        {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [found]},
        {"type": "additional_tools", "role": "developer", "tools": [found]},
    ]  # fmt: skip
    messages = messages_of(items)
    assert [message["role"] for message in messages.messages] == ["assistant", "tool"] and not messages.left_out.names
    assert json.loads(messages.messages[1]["content"]) == {"tools": [found]}
    assert [*tools_of_items(items, "input")] == [([found], "input[1].tools"), ([found], "input[2].tools")]


def test_every_type_of_the_published_items_is_known() -> None:
    hints = (typing.get_type_hints(kind).get("type") for kind in typing.get_args(ResponseInputItemParam))
    kinds = {name for hint in hints for name in literals_of(hint)} - {"item_reference"}  # these are resolved before
    assert {"message", "function_call", "additional_tools", "compaction_trigger"} <= kinds
    for kind in sorted(kinds):
        item: dict[str, Any] = {
            "type": kind,
            "role": "user",
            "content": None,
            "call_id": "c",
            "name": "f",
            "arguments": "{}",
            "input": "x",
        }
        messages_of([{"role": "user", "content": "Hi"}, item])


def literals_of(hint: Any) -> list[str]:
    if typing.get_origin(hint) is typing.Literal:
        return [*typing.get_args(hint)]
    return [name for part in typing.get_args(hint) for name in literals_of(part)]


@for_each("output", [None, ...])
def test_a_result_may_have_no_output(output: Any) -> None:
    item = {"type": "function_call_output", "call_id": "c1", **({} if output is ... else {"output": output})}
    assert messages_of([call(1), item]).messages[1] == {"role": "tool", "content": None, "tool_call_id": "c1"}


@for_each(("item", "param"), [
    ("Hi", "input[0]"), ({}, "input[0].type"), ({"type": "robot"}, "input[0].type"),
    ({"type": ["message"]}, "input[0].type"),
    ({"role": "robot", "content": "x"}, "input[0].role"), ({"type": "message"}, "input[0].role"),
    ({"role": [], "content": "x"}, "input[0].role"),
    ({**call(1), "arguments": []}, "input[0].arguments"), ({**call(1), "name": None}, "input[0].name"),
    ({**call(1), "call_id": 7}, "input[0].call_id"),
    ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
    ({"type": "reasoning", "content": "x"}, "input[0].content"),
    ({"type": "reasoning", "summary": [{"text": 1}]}, "input[0].summary"),
])  # fmt: skip
def test_a_bad_item_is_named(item: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_of([item])
    assert caught.value.details["param"] == param


def test_messages_are_bounded() -> None:
    messages_of([{"role": "user", "content": "Hi"}] * MAX_MESSAGES)
    with pytest.raises(InvalidRequest, match="input has more than 8192 messages"):
        messages_of([{"role": "user", "content": "Hi"}] * (MAX_MESSAGES + 1))
