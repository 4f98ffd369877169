"""chat_messages: calls get ids, results find their calls, and errors name the place."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.ollama.messages import chat_messages
from chairlift.protocol.request_fields import MAX_MESSAGES
from support_shares import FULL, for_each


def calls(*names: str, **fields: Any) -> dict[str, Any]:
    """Return an assistant's message with calls."""
    listed = [{"function": {"name": name, "arguments": {"at": index}}} for index, name in enumerate(names)]
    return {"role": "assistant", "content": "", "tool_calls": listed, **fields}


def result(name: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": "done", **({} if name is None else {"tool_name": name}), **fields}


NUM_CALLS, NUM_RESULTS = (100_000, MAX_MESSAGES - 1) if FULL else (12_000, 8_000)


def answered(*messages: dict[str, Any]) -> list[str]:
    """Return the ids of calls that the results name."""
    return [message["tool_call_id"] for message in chat_messages([*messages]) if message["role"] == "tool"]


def test_a_conversation() -> None:
    messages = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi", "images": None, "thinking": "x"},
        {"role": "assistant", "content": None, "thinking": "Hm.", "mood": "good"}, calls("f"), result("f"),
    ]  # fmt: skip
    assert chat_messages(messages) == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi", "thinking": "x"},
        {"role": "assistant", "content": "", "mood": "good", "reasoning_content": "Hm."},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"at":0}'}},
        ]},
        {"role": "tool", "content": "done", "tool_call_id": "call_0"},
    ]  # fmt: skip
    assert chat_messages(None) == [] == chat_messages([])


def test_what_is_left_out_is_empty() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    found = chat_messages([
        {"role": "system"}, {"role": "user", "content": ""}, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": None},
    ])  # fmt: skip
    assert [each["content"] for each in found] == ["", "", "", ""]
    assert found[2]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


def test_results_find_their_calls() -> None:
    assert answered(calls("f", "g", "f"), result("f"), result("f"), result("g")) == ["call_0", "call_2", "call_1"]
    assert answered(calls("f", "g"), result(), result()) == ["call_0", "call_1"]
    assert answered(calls("f", "g"), result("g"), result()) == ["call_1", "call_0"]
    assert answered(calls("f", "g"), result("h")) == ["call_0"]
    assert answered(calls("f", "g"), result("f"), result("g"), result("f"), result("x")) == [
        "call_0", "call_1", "call_0", "call_1",
    ]  # fmt: skip
    assert answered(calls("f"), result(name="f")) == ["call_0"]


def test_ids_of_the_client_are_kept() -> None:
    own = {"role": "assistant", "tool_calls": [
        {"id": "b", "function": {"name": "f"}}, {"id": "b", "function": {"name": "f", "arguments": None}},
        {"id": "", "function": {"name": "f"}},
    ]}  # fmt: skip
    ids = [call["id"] for call in chat_messages([own])[0]["tool_calls"]]
    assert ids == ["b", "call_1", "call_2"]
    assert answered(own, result("f", tool_call_id="call_2"), result("f", tool_call_id="?")) == ["call_2", "b"]


def test_many_calls_and_results() -> None:
    """With work that grows with the product of both the whole takes hours, the share minutes."""
    many = calls(*["f"] * NUM_CALLS)
    last = f"call_{NUM_RESULTS - 1}"
    assert answered(many, *[result("f")] * NUM_RESULTS)[-1] == last
    assert answered(many, *[result()] * NUM_RESULTS)[-1] == last


BAD: list[tuple[Any, str]] = [
    (7, "messages"), ("Hi", "messages"), ([{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1), "messages"),
    ([7], "messages[0]"), ([{"role": "king", "content": "x"}], "messages[0].role"),
    ([{"content": "x"}], "messages[0].role"), ([{"role": "user"}], "messages[0].content"),
    ([{"role": "tool", "content": 7}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], "messages[0].content"),
    ([{"role": "user", "content": "x", "images": ["aGk="]}], "messages[0].images"),
    ([{"role": "assistant", "thinking": 7}], "messages[0].thinking"),
    ([{"role": "assistant", "tool_calls": 7}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [7]}], "messages[0].tool_calls[0].function"),
    ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
     "messages[0].tool_calls[0].function.arguments"),
    ([result("f")], "messages[0]"), ([calls("f"), result("f", tool_name=7)], "messages[1].tool_name"),
]  # fmt: skip


@for_each(("messages", "param"), BAD)
def test_an_error_names_the_place(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_messages(messages)
    assert caught.value.details["param"] == param and caught.value.message.startswith(param)
