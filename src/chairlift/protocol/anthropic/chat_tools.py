"""chat_tools and chat_tool_choice: the tools of a request of Anthropic's API as those of chat completions."""

from typing import Any, NamedTuple

from chairlift.core.validation import boolean, invalid_param
from chairlift.protocol.anthropic.client_tools import client_tool
from chairlift.protocol.field_check import format_short
from chairlift.protocol.left_out_types import LeftOutTypes
from chairlift.protocol.plain_choice import ANY, AUTO, NAMED_TOOL, NONE, SINGLE, plain_choice
from chairlift.protocol.request_schemas import MAX_TOOLS
from chairlift.protocol.translation.base import Json

TOOL_MEMBERS = {".function.parameters": ".input_schema", ".function": ""}
"""Beginning of a path within a tool of chat completions -> that within a tool of Anthropic's API."""

CUSTOM = "custom"
_READ = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})
_WORDS = (AUTO, ANY, NONE)


class ChatTools(NamedTuple):
    """The tools of chat completions, for each of them the place in the request, and the names of those left out."""

    tools: list[Json]
    places: list[str]
    left_out: list[Any]


def chat_tools(tools: Any, ignored: list[str]) -> ChatTools:
    """Return the tools that the client runs. Raises InvalidRequest.

    Adds the names of fields without effect to `ignored`, and the types of tools that Anthropic's servers run.
    """
    found = ChatTools([], [], [])
    if tools is None:
        return found
    if not isinstance(tools, list):
        raise invalid_param("tools", f"must be a list, got {format_short(tools)}")
    if len(tools) > MAX_TOOLS:
        raise invalid_param("tools", f"has {len(tools)} entries, the limit is {MAX_TOOLS}")
    left_out, unread = LeftOutTypes(), dict[str, None]()
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        kind = _type(tool, at)
        if kind in ("", CUSTOM) or isinstance(tool.get("input_schema"), dict):
            function = _function(tool, at)
            unread |= dict.fromkeys(name for name, value in tool.items() if name not in _READ and value is not None)
        elif (known := client_tool(kind, tool.get("name"))) is not None:
            function = known
        else:
            left_out.add("tools", kind)
            found.left_out.append(tool.get("name"))
            continue
        found.tools.append({"type": "function", "function": function})
        found.places.append(at)
    ignored += [*left_out.names, *(f"tools.{name}" for name in unread)]
    return found


def _type(tool: Any, at: str) -> str:
    """Return the type of a tool, "" where it has none."""
    if not isinstance(tool, dict):
        raise invalid_param(at, f"must be an object, got {format_short(tool)}")
    kind = tool.get("type")
    if kind is not None and (not isinstance(kind, str) or not kind):
        raise invalid_param(f"{at}.type", f"must be a string that is not empty, got {format_short(kind)}")
    return kind or ""


def _function(tool: Json, at: str) -> Json:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict | None):
        raise invalid_param(f"{at}.input_schema", f"must be an object, got {format_short(schema)}")
    if tool.get("strict") is not None:
        boolean(f"{at}.strict", tool["strict"])
    function: Json = {"name": tool.get("name"), "parameters": schema or {"type": "object", "properties": {}}}
    return function | {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}


def chat_tool_choice(choice: Any) -> Json:
    """Return tool_choice, and parallel_tool_calls where the choice names it. Raises InvalidRequest."""
    if choice is None:
        return {}
    if not isinstance(choice, dict):
        raise invalid_param("tool_choice", f"must be an object, got {format_short(choice)}")
    kind, is_single = choice.get("type"), choice.get(SINGLE)
    if kind == NAMED_TOOL:
        if not isinstance(name := choice.get("name"), str):
            raise invalid_param("tool_choice.name", f"must be a string, got {format_short(name)}")
        fields: Json = {"tool_choice": {"type": "function", "function": {"name": name}}}
    elif kind in _WORDS:
        fields = {"tool_choice": plain_choice(choice)}
    else:
        raise invalid_param("tool_choice.type", f"must be auto, any, tool or none, got {format_short(kind)}")
    if is_single is not None:
        fields["parallel_tool_calls"] = not boolean(f"tool_choice.{SINGLE}", is_single)
    return fields
