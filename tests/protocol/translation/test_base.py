"""FieldNames: fields of a translated body get the names that the client knows."""

from chairlift.protocol.translation.base import FieldNames
from support_shares import for_each

NAMES = FieldNames(
    {"max_completion_tokens": "max_output_tokens", "response_format": "text.format"},
    ("instructions", "input[0]", "input[3]"), {".tool_call_id": ".call_id"},
    tool_members={".function.parameters": ".input_schema", ".function": ""},
    paths={"messages[1].tool_calls[1].function.arguments": "input[0].content[4].input"},
)  # fmt: skip


@for_each(("param", "own"), [
    ("messages[0]", "instructions"),
    ("messages[1].tool_call_id", "input[0].call_id"),
    ("messages[2].content[1].type", "input[3].content[1].type"),
    ("messages[3]", "messages[3]"),
    ("messages[1].tool_calls[1].function.arguments.a.b", "input[0].content[4].input.a.b"),
    ("messages[1].tool_calls[0].function.arguments", "input[0].tool_calls[0].function.arguments"),
    ("messages[x]", "messages[x]"),
    ("messages", "messages"),
    ("tools[1].function.name", "tools[1].name"),
    ("tools[1].function.parameters.type", "tools[1].input_schema.type"),
    ("tools[1]", "tools[1]"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format.json_schema"),
    ("seed", "seed"),
])  # fmt: skip
def test_own_names(param: str, own: str) -> None:
    assert NAMES.own(param) == own


NESTED = FieldNames({"response_format": "format", "response_format.json_schema.schema": "format", "logprobs": "tops"})


@for_each(("message", "param", "own"), [
    ("response_format.json_schema.schema must be small", "response_format", "format must be small"),
    ("response_format.type must be text", "response_format.type", "format.type must be text"),
    ("logprobs must be 1", "logprobs", "tops must be 1"),
    ("the field logprobs is bad", "logprobs", "the field tops is bad"),
    ("logprobs_of must be 1", "logprobs_of", "logprobs_of must be 1"),
    ("tools[1].function.name is bad", "tools[1].function.name", "tools[1].function.name is bad"),
])  # fmt: skip
def test_own_messages(message: str, param: str, own: str) -> None:
    assert NESTED.own_message(message, param) == own


def test_a_message_about_a_place_has_the_place_of_the_request() -> None:
    names = FieldNames({"messages": "input"}, ["input[3]"], {".tool_call_id": ".call_id"})
    message = names.own_message("messages[0].tool_call_id must be an id", "messages[0].tool_call_id")
    assert message == "input[3].call_id must be an id"


def test_tools_have_the_places_of_the_request() -> None:
    names = FieldNames(tools=["tools[3]"], tool_members={".function": "", ".custom": ""})
    assert [names.own(f"tools[{index}].custom.name") for index in (0, 1)] == ["tools[3].name", "tools[1].name"]


def test_the_longest_name_of_a_path_counts() -> None:
    assert NESTED.own("response_format.json_schema.schema/properties/a") == "format/properties/a"
    assert NESTED.own("logprobs_of") == "logprobs_of"
