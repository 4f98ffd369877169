"""Tools: what a request offers for calling, what it forces, and what of that a grammar has to enforce."""

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
from chairlift.text.tool_grammar import READ_AS, forced_calls, prefill
from chairlift.text.tool_parser import HERMES

NONE, AUTO, REQUIRED = "none", "auto", "required"
_OPENING = frozenset({
    "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties",
    "dependentSchemas", "dependentRequired", "dependencies", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not",
    "if", "const", "enum",
})  # fmt: skip
"""Where a schema of arguments has one of these, it says itself which properties there may be."""

_NAME = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_TOOL_NAME_CHARS}}}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """The tools of a request.

    Attributes:
        tools: as the template takes them; None where none may be called.
        notation: in which the answer's calls are read; None where they are not.
        prefill: with what the answer begins already, at the end of the prompt.
        structure: what enforces a call; None where the model may choose.
        several: whether an answer may have more than one call.
    """

    tools: list[dict[str, Any]] | None = None
    notation: str | None = None
    prefill: str = ""
    structure: StructuredOutput | None = None
    several: bool = True

    @property
    def shows_special(self) -> bool:
        """Whether calls are written with special tokens, so that these must stay in the text."""
        return self.structure is None and self.notation not in (None, HERMES)

    @property
    def ignores_strict(self) -> bool:
        """Whether a tool asks that its schema is kept to and nothing enforces it, as with calls that are free."""
        return self.structure is None and any(tool["function"].get("strict") is True for tool in self.tools or ())


def read_tools(given: Mapping[str, Any], notation: str | None) -> ToolChoice | None:
    """Read tools, tool_choice and parallel_tool_calls; None where there are none. Raises InvalidRequest."""
    tools, choice = given.get("tools"), given.get("tool_choice")
    several = boolean("parallel_tool_calls", given.get("parallel_tool_calls", True))
    if tools is None or tools == []:
        if choice not in (None, NONE, AUTO):
            raise invalid_param("tool_choice", "needs tools to choose from")
        return None
    found = tool_schemas(tools)
    name = _chosen(choice, found)
    if choice == NONE:
        return ToolChoice()
    if notation is None:
        raise invalid_param("tools", "cannot be called: the model's chat template knows no notation for calls")
    if name is not None or choice == REQUIRED:
        chosen = {each: schema for each, schema in found.items() if name in (None, each)}
        several = several and name is None
        return ToolChoice(
            tools=tools, notation=READ_AS, prefill=prefill(notation), several=several,
            structure=_forced(forced_calls(notation, chosen, several=several)),
        )  # fmt: skip
    return ToolChoice(tools=tools, notation=notation, several=several)


def check_messages(messages: list[Any]) -> None:
    """Check what messages say of calls: arguments are JSON, and a tool answers a call that was made.

    Everything else of messages is checked where they are rendered. Raises InvalidRequest.
    """
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        at = f"messages[{index}]"
        if message.get("role") == "assistant":
            for number, call in enumerate(_calls(message, at)):
                open_calls.add(_checked_call(call, f"{at}.tool_calls[{number}]"))
            if not isinstance(message.get("function_call"), dict | None):
                raise invalid_param(f"{at}.function_call", "must be an object")
        elif message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str) or call_id not in open_calls:
                raise invalid_param(
                    f"{at}.tool_call_id", "must be the id of a call in an assistant's message before it"
                )


def parsed_arguments(messages: list[Any]) -> list[Any]:
    """Return the messages with the arguments of calls as objects, which is what chat templates are written for."""
    return [_with_arguments(message) if isinstance(message, dict) else message for message in messages]


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list):  # others were not checked
        return message
    parsed = [
        {**call, "function": {**call["function"], "arguments": _strict(call["function"]["arguments"])}}
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


def _checked_call(call: Any, at: str) -> str:
    """Return the id of a call."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid_param(f"{at}.function.name", "must be a string")
    if not isinstance(call.get("id"), str):
        raise invalid_param(f"{at}.id", "must be a string")
    arguments = function.get("arguments")
    try:
        is_object = isinstance(arguments, str) and isinstance(_strict(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise invalid_param(f"{at}.function.arguments", "must be a string with a JSON object in it")
    found: str = call["id"]
    return found


def _strict(text: str) -> Any:
    """Return what JSON says; orjson knows no NaN and no 1e999, and json keeps integers of any size.

    Nothing at all is an empty object: OpenAI's own models write that for a call without arguments.
    """
    text = text or "{}"
    orjson.loads(text)
    return json.loads(text)


def tool_schemas(tools: Any) -> dict[str, dict[str, Any]]:
    """Return name -> schema of the parameters, of tools that may be called. Raises InvalidRequest."""
    if not isinstance(tools, list):
        raise invalid_param("tools", f"must be a list, got {type(tools).__name__}")
    if len(tools) > MAX_TOOLS:
        raise invalid_param("tools", f"has {len(tools)} entries, the limit is {MAX_TOOLS}")
    found: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise invalid_param(at, "must be an object of type function with a function")
        function = tool["function"]
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.match(name):
            raise invalid_param(f"{at}.function.name", f"must be 1 to {MAX_TOOL_NAME_CHARS} letters, digits and _.:-")
        if name in found:
            raise invalid_param(f"{at}.function.name", f"is there twice: {name}")
        if not isinstance({} if parameters is None else parameters, dict):
            raise invalid_param(f"{at}.function.parameters", f"must be an object, got {type(parameters).__name__}")
        found[name] = _schema(parameters or {"type": "object"}, f"{at}.function.parameters")
    return found


def _schema(parameters: dict[str, Any], at: str) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which are an object also where it does not say so.

    A schema that names properties and says nothing of others is closed: a forced call makes no arguments up.
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
    """Whether a schema names properties, all that are required among them, and says nothing of others."""
    properties, required = parameters.get("properties"), parameters.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or _OPENING & parameters.keys():
        return False
    return all(isinstance(name, str) and name in properties for name in required)


def _forced(grammar: str) -> StructuredOutput:
    try:
        return StructuredOutput(grammar=grammar)
    except InvalidRequest as error:
        said = error.message.removeprefix("structured.grammar ")
        raise invalid_param("tools", f"cannot be forced: the grammar of all of them {said}") from None


def _chosen(choice: Any, found: Mapping[str, Any]) -> str | None:
    """Return the name of the one function that has to be called, None where it is open."""
    if choice is None or choice in (NONE, AUTO, REQUIRED):
        return None
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid_param("tool_choice", "must be none, auto, required or an object that names a function")
    if name not in found:
        raise invalid_param("tool_choice", f"names {name[:MAX_TOOL_NAME_CHARS]!r}, which is not among the tools")
    return name
