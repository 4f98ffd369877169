"""client_tool: tools of Anthropic's API that the client runs."""

from chairlift.core.structured_output import StructuredOutput
from chairlift.protocol.anthropic.client_tools import client_tool
from support_shares import for_each


@for_each(("kind", "is_known"), [
    ("bash_20241022", True), ("bash_20250124", True), ("text_editor_20250124", True), ("text_editor_20250728", True),
    ("bash", False), ("bash_", False), ("bash_code_execution", False), ("text_editor_x", False),
    ("web_search_20250305", False),
])  # fmt: skip
def test_types(kind: str, is_known: bool) -> None:
    function = client_tool(kind, "name")
    assert (function is not None) == is_known
    if function is not None:
        assert function["name"] == "name" and function["description"]
        StructuredOutput(json_schema=function["parameters"])
