"""chat_tools and chat_tool_choice: the tools of a request of Anthropic's API as those of chat completions."""

from typing import Any

from chairlift.core.validation import boolean, invalid_param
from chairlift.protocol.anthropic.client_tools import client_tool
from chairlift.protocol.field_check import format_short
from chairlift.protocol.left_out_types import LeftOutTypes
from chairlift.protocol.request_schemas import MAX_TOOLS
from chairlift.protocol.translation.base import Json

TOOL_MEMBERS = {".function.parameters": ".input_schema", ".function": ""}
"""Beginning of a path within a tool of chat completions -> that within a tool of Anthropic's API."""

CUSTOM = "custom"
_READ = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(tools: Any, ignored: list[str]) -> list[Json]:
    """Return the tools that the client runs. Raises InvalidRequest.

    Adds the names of fields without effect to `ignored`, and the types of tools that Anthropic's servers run.
    """
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise invalid_param("tools", f"must be a list, got {format_short(tools)}")
    if len(tools) > MAX_TOOLS:
        raise invalid_param("tools", f"has {len(tools)} entries, the limit is {MAX_TOOLS}")
    translated, left_out, unread = list[Json](), LeftOutTypes(), dict[str, None]()
    for index, tool in enumerate(tools):
        kind = _type(tool, f"tools[{index}]")
        if kind not in ("", CUSTOM) and not isinstance(tool.get("input_schema"), dict):
            if (function := client_tool(kind, tool.get("name"))) is None:
                left_out.add("tools", kind)
            else:
                translated.append({"type": "function", "function": function})
            continue
        translated.append(_tool(tool, f"tools[{index}]"))
        unread |= dict.fromkeys(name for name, value in tool.items() if name not in _READ and value is not None)
    ignored += [*left_out.names, *(f"tools.{name}" for name in unread)]
    return translated


def tool_places(tools: Any) -> dict[str, str]:
    """Return for the beginning of each path to a tool of chat_tools that in the request; `tools` was read."""
    read = [f"tools[{index}]" for index, tool in enumerate(tools or ()) if chat_tools([tool], [])]
    return {
        f"tools[{index}]{inner}": place + own
        for index, place in enumerate(read) for inner, own in (*TOOL_MEMBERS.items(), ("", ""))
    }  # fmt: skip


def _type(tool: Any, at: str) -> str:
    """Return the type of a tool, "" where it has none."""
    if not isinstance(tool, dict):
        raise invalid_param(at, f"must be an object, got {format_short(tool)}")
    kind = tool.get("type")
    if kind is not None and (not isinstance(kind, str) or not kind):
        raise invalid_param(f"{at}.type", f"must be a string that is not empty, got {format_short(kind)}")
    return kind or ""


def _tool(tool: Json, at: str) -> Json:
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
