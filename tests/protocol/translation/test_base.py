"""FieldNames: fields of a translated body get the names that the client knows."""

import pytest

from chairlift.protocol.translation.base import FieldNames

NAMES = FieldNames(
    {"max_completion_tokens": "max_output_tokens", "response_format": "text.format"},
    ("instructions", "input[0]", "input[3]"), {".tool_call_id": ".call_id"},
    tool_members={".function.parameters": ".input_schema", ".function": ""},
)  # fmt: skip


@pytest.mark.parametrize(("param", "own"), [
    ("messages[0]", "instructions"),
    ("messages[1].tool_call_id", "input[0].call_id"),
    ("messages[2].content[1].type", "input[3].content[1].type"),
    ("messages[3]", "messages[3]"),
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
