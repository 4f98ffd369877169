"""OfferedTools: the tools of a request as functions that the model is shown, with the schemas of their arguments.

function                 ──> as it is
custom                   ──> a function with one string: see custom_tool_calls
web_search and others    ──> left out, because this server runs no tools itself; their types are named as ignored
"""

import re
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.core.validation import invalid_param
from chairlift.engine.structured.json_schema.closed_objects import close_objects
from chairlift.protocol.left_out_types import LeftOutTypes
from chairlift.protocol.request_schemas import MAX_TOOL_NAME_CHARS, MAX_TOOLS
from chairlift.text.custom_tool_calls import function_of

FUNCTION, CUSTOM = "function", "custom"

SCHEMA_NAMES = ("input_schema", "inputSchema")
"""What other APIs call the parameters of a function."""

_NAME = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_TOOL_NAME_CHARS}}}\Z")


@dataclass(slots=True)
class OfferedTools:
    """The functions that stand for the tools of a request.

    Attributes:
        tools: objects of type function.
        schemas: name of each of them -> schema of its arguments.
        places: where each of them is in the request, such as `tools[2].function`.
        custom_names: names of those that stand for custom tools.
        left_out: types of the tools that are left out.
    """

    tools: list[dict[str, Any]] = field(default_factory=list)
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)
    custom_names: set[str] = field(default_factory=set)
    left_out: LeftOutTypes = field(default_factory=LeftOutTypes)

    @classmethod
    def read(cls, tools: Any) -> "OfferedTools":
        """Read the field `tools`. Raises InvalidRequest that names the place of what is wrong."""
        if not isinstance(tools, list):
            raise invalid_param("tools", f"must be a list, got {type(tools).__name__}")
        if len(tools) > MAX_TOOLS:
            raise invalid_param("tools", f"has {len(tools)} entries, the limit is {MAX_TOOLS}")
        offered = cls()
        for index, tool in enumerate(tools):
            offered._add(tool, f"tools[{index}]")
        return offered

    def _add(self, tool: Any, at: str) -> None:
        kind = FUNCTION if isinstance(tool, dict) and tool.get("type") is None else tool_type(tool)
        if kind not in ("", FUNCTION, CUSTOM):
            self.left_out.add("tools", kind)
            return
        if not kind or (called := called_of(tool, kind)) is None:
            raise invalid_param(at, "must be an object of type function with a function, or of type custom")
        place = f"{at}.{kind}"
        name = called.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            raise invalid_param(
                f"{place}.name", f"must have 1 to {MAX_TOOL_NAME_CHARS} characters of A-Z, a-z, 0-9 and _.:-"
            )
        if name in self.schemas:
            raise invalid_param(f"{place}.name", f"appears twice: {name}")
        function = function_of(called) if kind == CUSTOM else _with_parameters(called)
        parameters = function.get("parameters")
        if not isinstance(parameters, dict | None):
            raise invalid_param(f"{place}.parameters", f"must be an object, got {type(parameters).__name__}")
        self.schemas[name] = _schema(parameters or {"type": "object"}, f"{place}.parameters")
        self.places.append(place)
        others = tool if kind == FUNCTION and FUNCTION in tool else {}
        self.tools.append({"type": FUNCTION, **others, FUNCTION: function})
        if kind == CUSTOM:
            self.custom_names.add(name)


def tool_type(tool: Any) -> str:
    """Return the type of a tool, a choice or a call, "" where it has none."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return kind if isinstance(kind, str) else ""


def called_of(tool: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """Return what a tool describes: its member of the name of its type, or itself, as in the Responses API; or None."""
    called = tool.get(kind)
    if isinstance(called, dict):
        return called
    return {name: value for name, value in tool.items() if name != "type"} if "name" in tool else None


def _with_parameters(function: dict[str, Any]) -> dict[str, Any]:
    """Return a function with its schema as `parameters`, which Anthropic's API and MCP call otherwise."""
    if function.get("parameters") is not None:
        return function
    schema = next((value for name in SCHEMA_NAMES if isinstance(value := function.get(name), dict)), None)
    if schema is None:
        return function
    return {name: value for name, value in function.items() if name not in SCHEMA_NAMES} | {"parameters": schema}


def _schema(parameters: dict[str, Any], at: str) -> dict[str, Any]:
    """Return the schema of a tool's arguments: they are an object, also where the schema allows other types.

    A schema that names properties and does not mention others is closed: a forced call invents no arguments.
    """
    kinds = parameters.get("type")
    if kinds not in (None, "object") and not (isinstance(kinds, list) and "object" in kinds):
        raise invalid_param(at, "must be a schema of type object")
    try:
        # The limits of a structured output's schema hold for tools, too; only the name in its message differs.
        StructuredOutput(json_schema=parameters)
    except InvalidRequest as error:
        raise invalid_param(at, error.message.removeprefix("structured.json_schema ")) from None
    members = {name: value for name, value in parameters.items() if name != "nullable"}
    closed: dict[str, Any] = close_objects({**members, "type": "object"})
    return closed
