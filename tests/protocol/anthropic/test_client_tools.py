"""client_tool: tools of Anthropic's API that the client runs."""

from chairlift.core.structured_output import StructuredOutput
from chairlift.protocol.anthropic.client_tools import client_tool
from support_shares import for_each


@for_each(("kind", "is_known"), [
    ("bash_20241022", True), ("bash_20250124", True), ("text_editor_20250124", True), ("text_editor_20250728", True),
    ("bash", False), ("bash_", False), ("bash_code_execution", False), ("text_editor_x", False),
    ("web_search_20250305", False), ("memory_20250818", True), ("memory", False), ("computer_20250124", False),
    ("text_editor_20241022", True), ("memory_", False),
])  # fmt: skip
def test_types(kind: str, is_known: bool) -> None:
    function = client_tool(kind, "name")
    assert (function is not None) == is_known
    if function is not None:
        assert function["name"] == "name" and function["description"]
        StructuredOutput(json_schema=function["parameters"])


@for_each(("kind", "commands"), [
    ("text_editor_20241022", "undo_edit"), ("text_editor_20250124", "undo_edit"), ("text_editor_20250728", ""),
    ("memory_20250818", "delete rename"),
])  # fmt: skip
def test_commands_on_files(kind: str, commands: str) -> None:
    function = client_tool(kind, "name")
    assert function is not None
    found = function["parameters"]["properties"]["command"]["enum"]
    assert found == ["view", "create", "str_replace", "insert", *commands.split()]
