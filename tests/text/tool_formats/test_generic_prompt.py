"""prompt_of: the prompt explains the tools; without_calls: calls and their results become text."""

import json
from typing import Any

from chairlift.text.chat_messages import ChatMessage, ToolCall
from chairlift.text.tool_formats.generic_prompt import prompt_of, without_calls


def message(role: str, content: str = "", **fields: Any) -> ChatMessage:
    return ChatMessage(role=role, content=content, **fields)


def test_the_prompt_has_the_tools_as_json() -> None:
    function = {"name": "f", "description": "é", "parameters": {"type": "object"}}
    prompt = prompt_of([{"type": "function", "function": function}])
    assert json.dumps([function], ensure_ascii=False) in prompt and '{"response": "your answer"}' in prompt


def test_calls_and_their_results_become_text() -> None:
    calls = tuple(ToolCall(name, name, {"x": 1}) for name in "fg")
    messages = [
        message("system", "s"), message("user", "u"), message("assistant", "I look.", calls=calls),
        message("tool", "5", call_id="f"), message("tool", "6", call_id="g"), message("assistant", "so"),
    ]  # fmt: skip
    result = without_calls(messages)
    assert [each.role for each in result] == ["system", "user", "assistant", "user", "assistant"]
    text, _, written = result[2].content.partition("\n\n")
    assert text == "I look." and not result[2].calls
    assert json.loads(written) == {"tool_calls": [{"name": name, "arguments": {"x": 1}} for name in "fg"]}
    assert json.loads(result[3].content) == {
        "tool_results": [{"tool_call_id": "f", "content": "5"}, {"tool_call_id": "g", "content": "6"}]
    }


def test_results_and_a_message_of_the_user_beside_them_are_one_message() -> None:
    messages = [
        message("user", "u"), message("assistant", calls=(ToolCall("a", "f", '{"cut'),)), message("user", "1"),
        message("tool", "5", call_id="a"), message("user", "2"), message("user", "3"),
    ]  # fmt: skip
    *before, joined, last = without_calls(messages)
    result = '{"tool_results": [{"tool_call_id": "a", "content": "5"}]}'
    assert [each.role for each in before] == ["user", "assistant"]
    assert json.loads(before[1].content) == {"tool_calls": [{"name": "f", "arguments": '{"cut'}]}
    assert joined == message("user", f"1\n\n{result}\n\n2")
    assert last == messages[-1], "the client's own messages stay"
