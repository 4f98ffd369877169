"""chat_tools and chat_tool_choice: the tools of a request of Anthropic's API as those of chat completions."""

from typing import Any

from chairlift.core.validation import boolean, invalid_param
from chairlift.protocol.field_check import format_short
from chairlift.protocol.request_schemas import MAX_TOOLS
from chairlift.protocol.translation.base import Json

TOOL_MEMBERS = {".function.parameters": ".input_schema", ".function": ""}
"""Beginning of a path within a tool of chat completions -> that within a tool of Anthropic's API."""

_READ = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(tools: Any, ignored: list[str]) -> list[Json]:
    """Return the tools; adds the names of their fields without effect to `ignored`. Raises InvalidRequest."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise invalid_param("tools", f"must be a list, got {format_short(tools)}")
    if len(tools) > MAX_TOOLS:
        raise invalid_param("tools", f"has {len(tools)} entries, the limit is {MAX_TOOLS}")
    translated = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    unread = dict.fromkeys(
        name for tool in tools for name, value in tool.items() if name not in _READ and value is not None
    )
    ignored += [f"tools.{name}" for name in unread]
    return translated


def _tool(tool: Any, at: str) -> Json:
    if not isinstance(tool, dict):
        raise invalid_param(at, f"must be an object, got {format_short(tool)}")
    if (kind := tool.get("type")) not in (None, "custom"):
        raise invalid_param(
            f"{at}.type", f"must be custom: this server runs no tools itself and knows none by its type, got "
            f"{format_short(kind)}; describe the tool with name, description and input_schema",
        )  # fmt: skip
    schema = tool.get("input_schema")
    if not isinstance(schema, dict | None):
        raise invalid_param(f"{at}.input_schema", f"must be an object, got {format_short(schema)}")
    if tool.get("strict") is not None:
        boolean(f"{at}.strict", tool["strict"])
    function: Json = {"name": tool.get("name"), "parameters": schema or {"type": "object", "properties": {}}}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def chat_tool_choice(choice: Any) -> Json:
    """Return tool_choice, and parallel_tool_calls where the choice names it. Raises InvalidRequest."""
    if choice is None:
        return {}
    if not isinstance(choice, dict):
        raise invalid_param("tool_choice", f"must be an object, got {format_short(choice)}")
    kind, is_single = choice.get("type"), choice.get("disable_parallel_tool_use")
    if kind == "tool":
        if not isinstance(name := choice.get("name"), str):
            raise invalid_param("tool_choice.name", f"must be a string, got {format_short(name)}")
        fields: Json = {"tool_choice": {"type": "function", "function": {"name": name}}}
    elif isinstance(kind, str) and kind in _CHOICES:
        fields = {"tool_choice": _CHOICES[kind]}
    else:
        raise invalid_param("tool_choice.type", f"must be auto, any, tool or none, got {format_short(kind)}")
    if is_single is not None:
        fields["parallel_tool_calls"] = not boolean("tool_choice.disable_parallel_tool_use", is_single)
    return fields
