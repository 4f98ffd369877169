"""Request schemas: JSON schemas of nested request objects: messages with calls, tools, tool_choice, response_format.

They state what holds for each field alone. The parser checks what depends on other fields or on the model: a duplicate
tool name, arguments that are not JSON, a template that requires a user message first.
"""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

MAX_TOOLS = 128
MAX_TOOL_NAME_CHARS = 64
ROLES = (
    "assistant", "context", "developer", "environment", "function", "ipython", "model", "system", "tool", "user",
)  # fmt: skip

_TEXT_PART: Schema = {
    "type": "object", "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}  # fmt: skip
_CONTENT: Schema = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}
_CALL: Schema = {
    "type": "object", "required": ["id", "function"],
    "properties": {
        "id": {"type": "string"},
        "function": {
            "type": "object", "required": ["name", "arguments"],
            "properties": {
                "name": {"type": "string"},
                "arguments": {"type": "string", "pattern": r"^(\s*\{[\s\S]*\}\s*)?$", "description": "a JSON object"},
            },
        },
    },
}  # fmt: skip
_PLAIN_ROLES = [role for role in ROLES if role not in ("assistant", "tool")]


def _message(role: Schema, required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": ["role", *required], "properties": {"role": role, **properties}}


_CALLS: Schema = {"type": "array", "items": _CALL}
_MAYBE: Mapping[str, Schema] = {
    "content": {"anyOf": [*_CONTENT["anyOf"], {"type": "null"}]},
    "tool_calls": {**_CALLS, "type": ["array", "null"]},
    "function_call": {"type": ["object", "null"]},
}
_ASSISTANT: Schema = {"const": "assistant"}
MESSAGE: Schema = {
    "anyOf": [
        _message({"enum": _PLAIN_ROLES}, ["content"], content=_CONTENT),
        _message({"const": "tool"}, ["content", "tool_call_id"], content=_CONTENT, tool_call_id={"type": "string"}),
        _message(_ASSISTANT, ["content"], **{**_MAYBE, "content": _CONTENT}),
        _message(_ASSISTANT, ["tool_calls"], **{**_MAYBE, "tool_calls": {**_CALLS, "minItems": 1}}),
        _message(_ASSISTANT, ["function_call"], **{**_MAYBE, "function_call": {"type": "object", "minProperties": 1}}),
    ]
}  # fmt: skip
"""One of a conversation."""

TOOL: Schema = {
    "type": "object", "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object", "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": f"^[A-Za-z0-9_.:-]{{1,{MAX_TOOL_NAME_CHARS}}}$"},
                "parameters": {"type": ["object", "null"], "properties": {"type": {"const": "object"}}},
            },
        },
    },
}  # fmt: skip
"""What may be called."""

_NAMED_FUNCTION: Schema = {
    "type": "object", "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    },
}  # fmt: skip

TOOL_CHOICE: Schema = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        _NAMED_FUNCTION,
        {"type": "object", "required": ["type", "allowed_tools"],
         "properties": {"type": {"const": "allowed_tools"},
                        "allowed_tools": {"type": "object", "required": ["mode", "tools"],
                                          "properties": {"mode": {"enum": ["auto", "required"]},
                                                         "tools": {"type": "array", "minItems": 1,
                                                                   "maxItems": MAX_TOOLS,
                                                                   "items": _NAMED_FUNCTION}}}}},
    ]
}  # fmt: skip
"""A word, a tool by its name, or some of the tools by their names."""

RESPONSE_FORMAT: Schema = {
    "anyOf": [
        {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
        {"type": "object", "required": ["type", "json_schema"],
         "properties": {"type": {"const": "json_schema"},
                        "json_schema": {"type": "object", "required": ["schema"],
                                        "properties": {"schema": {"type": "object"}}}}},
    ]
}  # fmt: skip
"""What the output has to be."""

STREAM_OPTIONS: Schema = {"type": "object", "properties": {"include_usage": {"type": ["boolean", "null"]}}}
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
