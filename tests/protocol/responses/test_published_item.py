"""published_item: what clients send comes out in the form of OpenAI's published types."""

from typing import Any

from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from chairlift.protocol.responses.published_item import published_item
from support_shares import for_each

PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponseItem)


def text(value: str) -> dict[str, Any]:
    return {"type": "input_text", "text": value}


def answer(value: str) -> dict[str, Any]:
    return {"type": "output_text", "text": value, "annotations": []}


@for_each(("role", "content", "parts"), [
    ("user", "a", [text("a")]), ("user", None, []), ("user", [], []), ("user", ["a", "b"], [text("a"), text("b")]),
    ("developer", [{"type": "text", "text": "a"}], [text("a")]),
    ("system", [answer("a") | {"annotations": None}], [text("a")]),
    ("assistant", "a", [answer("a")]),
    ("assistant", ["a", text("b"), {"type": "text", "text": "c"}], [*map(answer, "abc")]),
    ("assistant", [{"type": "refusal", "refusal": "No."}], [{"type": "refusal", "refusal": "No."}]),
    ("assistant", [{**answer("a"), "annotations": None, "logprobs": None}], [answer("a")]),
])  # fmt: skip
def test_the_content_of_a_message_is_a_list_of_parts(role: str, content: Any, parts: list[Any]) -> None:
    published = published_item({"type": None, "role": role, "content": content, "id": None, "status": None}, "x")
    assert published == {"type": "message", "id": "x", "status": "completed", "role": role, "content": parts}
    assert published_item(published, "y") == published
    PUBLISHED.validate_python(published)


@for_each(("item", "members"), [
    ({"type": "function_call", "name": "f", "arguments": {"a": 1}}, {"arguments": '{"a":1}'}),
    ({"type": "function_call", "name": "f", "arguments": None}, {"arguments": "{}"}),
    ({"type": "function_call", "name": "f"}, {"arguments": "{}"}),
    ({"type": "function_call", "name": "f", "arguments": '{"a'}, {"arguments": '{"a'}),
    ({"type": "function_call_output"}, {"output": ""}),
    ({"type": "function_call_output", "output": None}, {"output": ""}),
    ({"type": "function_call_output", "output": {"a": 1}}, {"output": '{"a":1}'}),
    ({"type": "function_call_output", "output": [{"type": "text", "text": "a"}]}, {"output": [text("a")]}),
    ({"type": "custom_tool_call_output", "output": [7]}, {"output": "[7]"}),
    ({"type": "reasoning"}, {"summary": []}),
    ({"type": "reasoning", "summary": None, "content": [{"text": "a"}], "encrypted_content": None},
     {"summary": [], "content": [{"type": "reasoning_text", "text": "a"}]}),
    ({"type": "reasoning", "summary": [{"text": "a"}], "content": None},
     {"summary": [{"type": "summary_text", "text": "a"}]}),
])  # fmt: skip
def test_members_that_may_have_other_forms(item: dict[str, Any], members: dict[str, Any]) -> None:
    call_id = {} if item["type"] == "reasoning" else {"call_id": "c"}
    published = published_item({**item, **call_id, "status": None}, "x")
    name = {"name": item["name"]} if "name" in item else {}
    assert published == {"type": item["type"], "id": "x", "status": "completed", **call_id, **name, **members}
    PUBLISHED.validate_python(published)


@for_each("item", [
    {"type": "additional_tools", "id": "a", "role": "developer", "tools": []},
    {"type": "compaction", "id": "a", "encrypted_content": "x"},
])  # fmt: skip
def test_other_items_stay(item: dict[str, Any]) -> None:
    assert published_item(item, "x") == item == published_item({**item, "status": None}, "x")


@for_each("item", [
    {"foo": 1}, {"id": 5, "role": "user", "content": "a"},
    {"role": "assistant", "content": 5}, {"role": "user", "content": [7, {"type": ["text"]}]},
    {"type": 5}, {"type": ["message"]}, {"type": "function_call", "arguments": [1]},
    {"type": "reasoning", "summary": 7, "content": [7]},
])  # fmt: skip
def test_what_is_no_item_does_not_fail(item: dict[str, Any]) -> None:
    assert published_item(item, "x")["id"] == "x"
