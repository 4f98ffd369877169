"""The script's next call is chosen by the results that a request has."""

from typing import Any

from record_clients.scripted_answer import TEXT, ScriptedCall, choose_answer
from support_shares import for_each

SCRIPT = (ScriptedCall("read", {"path": "a"}, "I read."), ScriptedCall("apply_patch", "*** Begin Patch"))
TOOLS = [{"type": "function"}]
CHAT_RESULT = {"role": "tool", "tool_call_id": "call_0", "content": ""}
BLOCK_RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0"}]}
ITEM_RESULT = {"type": "function_call_output", "call_id": "call_0", "output": ""}
CUSTOM_RESULT = {"type": "custom_tool_call_output", "call_id": "call_1", "output": ""}


@for_each(
    ("body", "number", "text", "tool"),
    [
        ({"messages": [{"role": "user", "content": "a"}], "tools": TOOLS}, 0, "I read.", "read"),
        ({"input": "a", "tools": TOOLS}, 0, "I read.", "read"),
        ({"messages": [CHAT_RESULT], "tools": TOOLS}, 1, "", "apply_patch"),
        ({"messages": [BLOCK_RESULT], "tools": TOOLS}, 1, "", "apply_patch"),
        ({"input": [ITEM_RESULT], "tools": TOOLS}, 1, "", "apply_patch"),
        ({"input": [ITEM_RESULT, CUSTOM_RESULT], "tools": TOOLS}, 2, TEXT, None),
        ({"messages": [{"role": "user", "content": "a title"}]}, 0, TEXT, None),
        ({"messages": [{"role": "user", "content": "a title"}], "tools": []}, 0, TEXT, None),
    ],
)  # fmt: skip
def test_the_next_call_is_chosen(body: dict[str, Any], number: int, text: str, tool: str | None) -> None:
    answer = choose_answer(SCRIPT, body)
    assert (answer.number, answer.text) == (number, text)
    assert (None if answer.call is None else answer.call.tool) == tool


def test_texts_follow_each_other_and_the_last_one_repeats() -> None:
    assert [choose_answer((), {}, ("a", "b"), sent).text for sent in range(3)] == ["a", "b", "b"]


def test_a_string_is_the_input_of_a_custom_tool() -> None:
    assert [call.is_custom for call in SCRIPT] == [False, True]
    assert [call.input for call in SCRIPT] == ['{"path": "a"}', "*** Begin Patch"]
