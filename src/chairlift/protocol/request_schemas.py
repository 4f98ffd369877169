"""Request schemas: JSON schemas of nested request objects: messages with calls, tools, tool_choice, response_format.

They state what holds for each field alone. The parser checks what depends on other fields or on the model: a duplicate
tool name, arguments that are not JSON, a template that requires a user message first.
"""

from collections.abc import Mapping
from typing import Any

from chairlift.core.chat_template_names_and_limits import REASONING_FIELDS, ROLES, TEXT_PARTS
from chairlift.protocol.plain_choice import ANY, CHOICES, NAMED_TOOL

Schema = dict[str, Any]

MAX_TOOLS = 128
MAX_TOOL_NAME_CHARS = 128
MAX_DOCUMENTS = 1024


def _part(types: tuple[str, ...], **fields: Schema) -> Schema:
    return {"type": "object", "required": ["type", *fields], "properties": {"type": {"enum": [*types]}, **fields}}


_TEXT_PART = _part(TEXT_PARTS, text={"type": "string"})
_ANSWER_PARTS: list[Schema] = [
    {"type": "string"}, _TEXT_PART, _part(("refusal",), refusal={"type": "string"}),
    _part(("thinking", "reasoning", "redacted_thinking")),
]  # fmt: skip
_CONTENT: Schema = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [_TEXT_PART, {"type": "string"}]}}]
}
_ANSWER: Schema = {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"anyOf": _ANSWER_PARTS}}]}
_OF_CUSTOM_TYPE: Schema = {"required": ["type"], "properties": {"type": {"const": "custom"}}}
_FUNCTION_CALL: Schema = {
    "type": "object", "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "arguments": {"type": ["string", "object", "null"], "description": "a JSON object, also one that was cut off"},
    },
}  # fmt: skip
_ID: Schema = {"type": ["string", "null"], "description": "of a call; without one, results follow in the calls' order"}
_CALL: Schema = {"anyOf": [
    {"type": "object", "required": ["function"], "not": _OF_CUSTOM_TYPE,
     "properties": {"id": _ID, "function": _FUNCTION_CALL}},
    {"type": "object", "required": ["type", "custom"], "properties": {
        "id": _ID, "type": {"const": "custom"},
        "custom": {"type": "object", "required": ["name"],
                   "properties": {"name": {"type": "string"}, "input": {"type": "string"}}},
    }},
]}  # fmt: skip
_PLAIN_ROLES = [role for role in ROLES if role not in ("assistant", "tool")]


def _message(role: Schema, required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": ["role", *required], "properties": {"role": role, **properties}}


_CALLS: Schema = {"type": "array", "items": _CALL}
_MAYBE: Mapping[str, Schema] = {
    "content": _ANSWER,
    "tool_calls": {**_CALLS, "type": ["array", "null"]},
    "function_call": {"anyOf": [{"type": "null"}, {"type": "object", "maxProperties": 0}, _FUNCTION_CALL]},
    "refusal": {"type": ["string", "null"]},
    **{name: {"description": "reasoning of this answer"} for name in REASONING_FIELDS},
}
_ASSISTANT: Schema = {"const": "assistant"}
MESSAGE: Schema = {
    "anyOf": [
        _message({"enum": _PLAIN_ROLES}, ["content"], content=_CONTENT),
        _message({"const": "tool"}, [], content={"anyOf": [*_CONTENT["anyOf"], {"type": "null"}]},
                 tool_call_id=_ID),
        _message(_ASSISTANT, [], **_MAYBE),
    ]
}  # fmt: skip
"""One of a conversation."""

PREDICTION: Schema = {
    "type": "object", "required": ["type", "content"],
    "properties": {"type": {"const": "content"}, "content": _CONTENT},
}  # fmt: skip

_TOOL_NAME: Schema = {"type": "string", "pattern": f"^[A-Za-z0-9_.:-]{{1,{MAX_TOOL_NAME_CHARS}}}$"}
ARGUMENTS_TYPE: Schema = {"anyOf": [
    {"enum": ["object", None]}, {"type": "array", "contains": {"const": "object"}},
]}  # fmt: skip
"""The `type` in the schema of a tool's arguments, which are an object even if other types are allowed beside it."""

_PARAMETERS: Schema = {"type": ["object", "null"], "properties": {"type": ARGUMENTS_TYPE}}
_FUNCTION: Schema = {
    "type": "object", "required": ["name"], "properties": {"name": _TOOL_NAME, "parameters": _PARAMETERS}
}  # fmt: skip
_CUSTOM: Schema = {"type": "object", "required": ["name"], "properties": {"name": _TOOL_NAME}}
_OWN_TYPES = ("function", "custom")


def _of_type(kind: str, members: Schema, called: Schema) -> list[Schema]:
    """Return the schemas of a tool of a type: what it describes is a member, or the tool itself."""
    nested: Schema = {"type": "object", "required": [kind], "properties": {**members, kind: called}}
    flat: Schema = {**called, "properties": {**called["properties"], **members}, "not": {
        "required": [kind], "properties": {kind: {"type": "object"}},
    }}  # fmt: skip
    return [nested, flat]


TOOL: Schema = {"anyOf": [
    *_of_type("function", {"type": {"enum": ["function", None]}}, _FUNCTION),
    *({**each, "required": ["type", *each["required"]]} for each in _of_type("custom", {"type": {"const": "custom"}},
                                                                               _CUSTOM)),
    {"type": "object", "required": ["type"],
     "properties": {"type": {"type": "string", "minLength": 1, "not": {"enum": [*_OWN_TYPES]}}}},
]}  # fmt: skip
"""What may be called; tools of other types are left out."""

_NAMED: Schema = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_NAMED_FUNCTION: Schema = {"anyOf": [
    {**each, "required": ["type", *each["required"]]}
    for kind in _OWN_TYPES for each in _of_type(kind, {"type": {"const": kind}}, _NAMED)
]}  # fmt: skip

LEFT_OUT_CHOICE: Schema = {
    "type": "object", "required": ["type"],
    "properties": {"type": {"type": "string", "minLength": 1, "not": {"enum": [
        *_OWN_TYPES, "allowed_tools", NAMED_TOOL,
    ]}}},
}  # fmt: skip
"""A choice of a tool of a type that is left out has no effect."""


def allowed_tools(named: Schema) -> list[Schema]:
    """Return the schemas of a choice of some tools, each of which `named` describes: nested and flat."""
    members: Schema = {
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "minItems": 1, "maxItems": MAX_TOOLS, "items": {"anyOf": [named, LEFT_OUT_CHOICE]}},
    }  # fmt: skip
    kind: Schema = {"const": "allowed_tools"}
    nested: Schema = {"type": "object", "required": ["mode", "tools"], "properties": members}
    return [
        {"type": "object", "required": ["type", "allowed_tools"],
         "properties": {"type": kind, "allowed_tools": nested}},
        {"type": "object", "required": ["type", "mode", "tools"], "properties": {"type": kind, **members},
         "not": {"required": ["allowed_tools"]}},
    ]  # fmt: skip


_WORD: Schema = {"enum": [*CHOICES, ANY]}
TOOL_CHOICE: Schema = {
    "anyOf": [
        _WORD,
        {"type": "object", "required": ["type"], "properties": {"type": _WORD}},
        {"type": "object", "required": ["type", "name"],
         "properties": {"type": {"const": NAMED_TOOL}, "name": {"type": "string"}}},
        _NAMED_FUNCTION,
        *allowed_tools(_NAMED_FUNCTION),
        LEFT_OUT_CHOICE,
    ]
}  # fmt: skip
"""A word, a tool by its name, or some of the tools by their names."""

RESPONSE_FORMAT: Schema = {
    "anyOf": [
        {"type": "object", "required": ["type"], "properties": {"type": {"const": "text"}}},
        {"type": "object", "required": ["type"],
         "properties": {"type": {"const": "json_object"}, "schema": {"type": ["object", "null"]}}},
        {"type": "object", "required": ["type", "schema"], "not": {"required": ["json_schema"]},
         "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}}},
        *({"type": "object", "required": ["type", kind],
           "properties": {"type": {"const": kind}, kind: {"type": "string", "minLength": 1}}}
          for kind in ("regex", "grammar")),
        {"type": "object", "required": ["type", "json_schema"],
         "properties": {"type": {"const": "json_schema"},
                        "json_schema": {"type": "object", "required": ["schema"],
                                        "properties": {"schema": {"type": "object"}}}}},
    ]
}  # fmt: skip
"""What the output has to be."""

JSON_SCHEMA: Schema = {"type": ["object", "string"]}
"""A JSON Schema, or one as JSON text."""

_MAYBE_TEXT: Schema = {"type": ["string", "null"], "minLength": 1}
STRUCTURED_OUTPUTS: Schema = {
    "type": "object",
    "properties": {
        "json": {"type": ["object", "string", "null"]},
        "regex": _MAYBE_TEXT, "grammar": _MAYBE_TEXT,
        "choice": {"type": ["array", "string", "null"], "items": {"type": "string", "minLength": 1}, "minItems": 1,
                   "minLength": 1},
        "json_object": {"type": ["boolean", "null"]},
        **{name: {"type": "null"} for name in ("whitespace_pattern", "structural_tag")},
        "disable_any_whitespace": {"enum": [None, False]},
        "disable_additional_properties": {"type": ["boolean", "null"]},
    },
}  # fmt: skip
"""vLLM's constraints, of which a request has one."""

INCLUDE_USAGE, CONTINUOUS_USAGE = "include_usage", "continuous_usage_stats"

STREAM_OPTIONS: Schema = {
    "type": "object", "properties": {
        name: {"type": ["boolean", "null"]} for name in (INCLUDE_USAGE, CONTINUOUS_USAGE)
    },
}  # fmt: skip
"""The options of a stream; others are ignored by name."""


def one_or_many(single: Schema, most: int, *, least: int = 0) -> Schema:
    """Return the schema of a list that may also be a single value."""
    many: Schema = {"type": "array", "items": single, "maxItems": most, **({"minItems": least} if least else {})}
    return {"anyOf": [single, many]}


def processors(name: Schema, most: int) -> Schema:
    """Return the schema of processors: name, list of names or [name, arguments], or object by name."""
    arguments: Schema = {"type": ["object", "null"]}
    pair: Schema = {"type": "array", "prefixItems": [name, arguments], "minItems": 2, "maxItems": 2}
    return {
        "anyOf": [
            name,
            {"type": "array", "items": {"anyOf": [name, pair]}, "maxItems": most},
            {"type": "object", "propertyNames": name, "additionalProperties": arguments, "maxProperties": most},
        ]
    }
