"""ToolChoice: parses the tools of a request, and compiles a forced call into a grammar."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.core.validation import boolean, invalid_param
from chairlift.protocol.request_fields import MAX_TOOLS
from chairlift.protocol.request_schemas import MAX_TOOL_NAME_CHARS
from chairlift.text.tool_grammar import READ_AS, prefill, tool_call_grammar
from chairlift.text.tool_parser import HERMES

NONE, AUTO, REQUIRED = "none", "auto", "required"
_PROPERTY_KEYWORDS = frozenset({
    "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties",
    "dependentSchemas", "dependentRequired", "dependencies", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not",
    "if", "const", "enum",
})  # fmt: skip
"""Keywords with which a schema of arguments itself defines the allowed properties, so it is not closed."""

_NAME = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_TOOL_NAME_CHARS}}}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """The tools of a request.

    Attributes:
        tools: the tools as the chat template takes them; None where none may be called.
        tool_format: the format in which calls are parsed from the output; None where they are not parsed.
        prefill: the first text of the response, already placed at the end of the prompt.
        structured: the grammar that enforces a call; None where the model may choose.
        allows_parallel_calls: whether a response may have more than one call.
    """

    tools: list[dict[str, Any]] | None = None
    tool_format: str | None = None
    prefill: str = ""
    structured: StructuredOutput | None = None
    allows_parallel_calls: bool = True

    @property
    def shows_special(self) -> bool:
        """Whether calls are written with special tokens, so that these must stay in the text."""
        return self.structured is None and self.tool_format not in (None, HERMES)

    @property
    def ignores_strict(self) -> bool:
        """Whether a tool sets `strict` and no grammar enforces it, because the model may choose to call."""
        return self.structured is None and any(tool["function"].get("strict") is True for tool in self.tools or ())


def read_tools(fields: Mapping[str, Any], tool_format: str | None) -> ToolChoice | None:
    """Parse tools, tool_choice and parallel_tool_calls; None without tools. Raises InvalidRequest."""
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    allows_parallel = boolean("parallel_tool_calls", fields.get("parallel_tool_calls", True))
    if tools is None or tools == []:
        if choice not in (None, NONE, AUTO):
            raise invalid_param("tool_choice", "needs tools, got none")
        return None
    schemas = tool_schemas(tools)
    name = _forced_name(choice, schemas)
    if choice == NONE:
        return ToolChoice()
    if tool_format is None:
        raise invalid_param("tools", "cannot be called: the model's chat template has no known format for tool calls")
    if name is not None or choice == REQUIRED:
        callable_schemas = {each: schema for each, schema in schemas.items() if name in (None, each)}
        allows_parallel = allows_parallel and name is None
        return ToolChoice(
            tools=tools, tool_format=READ_AS, prefill=prefill(tool_format), allows_parallel_calls=allows_parallel,
            structured=_forced_output(tool_call_grammar(tool_format, callable_schemas, several=allows_parallel)),
        )  # fmt: skip
    return ToolChoice(tools=tools, tool_format=tool_format, allows_parallel_calls=allows_parallel)


def check_messages(messages: list[Any]) -> None:
    """Check tool calls in messages: arguments are JSON, and a tool message names an earlier call.

    The chat template checks everything else when it renders the messages. Raises InvalidRequest.
    """
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        at = f"messages[{index}]"
        if message.get("role") == "assistant":
            for number, call in enumerate(_calls(message, at)):
                open_calls.add(_check_call(call, f"{at}.tool_calls[{number}]"))
            if not isinstance(message.get("function_call"), dict | None):
                raise invalid_param(f"{at}.function_call", "must be an object")
        elif message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str) or call_id not in open_calls:
                raise invalid_param(
                    f"{at}.tool_call_id", "must be the id of a tool call in an earlier assistant message"
                )


def parsed_arguments(messages: list[Any]) -> list[Any]:
    """Return the messages with call arguments parsed into objects, as chat templates expect them."""
    return [_with_arguments(message) if isinstance(message, dict) else message for message in messages]


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list):  # others were not checked
        return message
    parsed = [
        {**call, "function": {**call["function"], "arguments": _parse_strict(call["function"]["arguments"])}}
        for call in calls
    ]
    return {**message, "tool_calls": parsed}


def _calls(message: Mapping[str, Any], at: str) -> list[Any]:
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise invalid_param(f"{at}.tool_calls", f"must be a list, got {type(calls).__name__}")
    return calls


def _check_call(call: Any, at: str) -> str:
    """Return the id of a valid call. Raises InvalidRequest."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid_param(f"{at}.function.name", "must be a string")
    if not isinstance(call.get("id"), str):
        raise invalid_param(f"{at}.id", "must be a string")
    arguments = function.get("arguments")
    try:
        is_object = isinstance(arguments, str) and isinstance(_parse_strict(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise invalid_param(f"{at}.function.arguments", "must be a string that contains a JSON object")
    call_id: str = call["id"]
    return call_id


def _parse_strict(text: str) -> Any:
    """Parse JSON strictly: orjson rejects NaN and 1e999, and json keeps integers of any size.

    An empty text is an empty object: OpenAI's own models write that for a call without arguments.
    """
    text = text or "{}"
    orjson.loads(text)
    return json.loads(text)


def tool_schemas(tools: Any) -> dict[str, dict[str, Any]]:
    """Return a mapping of each tool's name to the schema of its parameters. Raises InvalidRequest."""
    if not isinstance(tools, list):
        raise invalid_param("tools", f"must be a list, got {type(tools).__name__}")
    if len(tools) > MAX_TOOLS:
        raise invalid_param("tools", f"has {len(tools)} entries, the limit is {MAX_TOOLS}")
    schemas: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise invalid_param(at, "must be an object of type function with a function")
        function = tool["function"]
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.match(name):
            raise invalid_param(
                f"{at}.function.name", f"must have 1 to {MAX_TOOL_NAME_CHARS} characters of A-Z, a-z, 0-9 and _.:-"
            )
        if name in schemas:
            raise invalid_param(f"{at}.function.name", f"appears twice: {name}")
        if not isinstance({} if parameters is None else parameters, dict):
            raise invalid_param(f"{at}.function.parameters", f"must be an object, got {type(parameters).__name__}")
        schemas[name] = _schema(parameters or {"type": "object"}, f"{at}.function.parameters")
    return schemas


def _schema(parameters: dict[str, Any], at: str) -> dict[str, Any]:
    """Return the schema of a tool's arguments; a missing type becomes object.

    A schema that names properties and does not mention others is closed: a forced call invents no arguments.
    """
    if parameters.get("type", "object") != "object":
        raise invalid_param(at, "must be a schema of type object")
    try:
        StructuredOutput(json_schema=parameters)
    except InvalidRequest as error:
        raise invalid_param(at, error.message.removeprefix("structured.json_schema ")) from None
    closed = {"additionalProperties": False} if _names_all(parameters) else {}
    return {**parameters, "type": "object", **closed}


def _names_all(parameters: Mapping[str, Any]) -> bool:
    """Return whether a schema lists properties, among them all required ones, and no others."""
    properties, required = parameters.get("properties"), parameters.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or _PROPERTY_KEYWORDS & parameters.keys():
        return False
    return all(isinstance(name, str) and name in properties for name in required)


def _forced_output(grammar: str) -> StructuredOutput:
    try:
        return StructuredOutput(grammar=grammar)
    except InvalidRequest as error:
        message = error.message.removeprefix("structured.grammar ")
        raise invalid_param("tools", f"cannot be enforced: the grammar of all tools {message}") from None


def _forced_name(choice: Any, schemas: Mapping[str, Any]) -> str | None:
    """Return the name of the one function that must be called, None if the model may choose."""
    if choice is None or choice in (NONE, AUTO, REQUIRED):
        return None
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid_param("tool_choice", "must be none, auto, required or an object that names a function")
    if name not in schemas:
        raise invalid_param("tool_choice", f"names {name[:MAX_TOOL_NAME_CHARS]!r}, which is not among the tools")
    return name
