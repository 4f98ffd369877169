"""tagged_arguments_rules: the grammar of arguments that have a tag each: a string as it is, any other value as JSON.

The arguments come in the order of the schema's properties. A string has neither its own end tag nor that of the call:
the format's parser ends it there.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from chairlift.core.lark_grammar_terms import lark_regex, lark_string, text_up_to, text_without
from chairlift.text.call_grammar_rules import lark_json, lark_marked
from chairlift.text.tool_formats.base import ArgumentTags, ToolSchemas
from chairlift.text.tool_formats.xml_calls import is_string_schema

_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "$schema"})
_OBJECT_KEYS = frozenset({"type", "properties", "required", "additionalProperties", "$defs"}) | _ANNOTATIONS
_STRING_KEYS = frozenset({"type", "enum", "const", "anyOf", "oneOf"}) | _ANNOTATIONS
_KEY = re.compile(r"[^<>\"'{}\[\]\s]{1,256}")


class NoTaggedArgumentsError(ValueError):
    """A schema of arguments that tags cannot express: a pattern of strings, alternatives of whole objects, ..."""


def tagged_arguments_rules(
    tags: ArgumentTags, schemas: Mapping[str, Any], parsed: ToolSchemas, ids: Mapping[str, int]
) -> Iterable[str]:
    """Yield the rules arguments_0, arguments_1, ... of each tool. Raises NoTaggedArgumentsError.

    `schemas` are in a form that StructuredOutput accepts. `parsed` are the schemas that the parser of the answer has,
    which reads a value as a string where these say so.
    """
    stops = "|".join(map(lark_regex, (tags.end, *tags.closing)))
    if tags.end in ids:
        yield f"raw: RAW? <[{ids[tags.end]}]>"
        yield f"RAW: {text_without(stops)}"
    else:
        yield "raw: RAW_AND_END"
        yield f"RAW_AND_END: {text_up_to(lark_regex(tags.end), stops)}"
    before, after = lark_marked(tags.before_key, ids), lark_marked(tags.after_key, ids)
    yield r"KEY: /[^<>\"'{}\[\] \n\r\t]{1,64}/"
    yield f"any: ({before} KEY {after} raw)*"
    for number, (name, schema) in enumerate(schemas.items()):
        yield from _rules_of(number, schema, parsed.get(name, {}), tags, ids)


def plain_properties(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the properties of an object; None where it is any object.

    Raises NoTaggedArgumentsError for a schema with other keywords than those of an object with properties.
    """
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    if not (schema.keys() <= _OBJECT_KEYS and set(required) <= properties.keys()):
        raise NoTaggedArgumentsError
    if not properties and schema.get("additionalProperties") is not False:
        if schema.get("additionalProperties", True) is not True:
            raise NoTaggedArgumentsError
        return None
    return dict(properties)


def _rules_of(
    number: int, schema: Mapping[str, Any], parsed: Mapping[str, Any], tags: ArgumentTags, ids: Mapping[str, int]
) -> Iterable[str]:
    """Yield the rule of one tool's arguments, and those of its values."""
    properties, required = plain_properties(schema), schema.get("required") or ()
    if properties is None:
        yield f"arguments_{number}: any"
        return
    before, after = lark_marked(tags.before_key, ids), lark_marked(tags.after_key, ids)
    end = lark_marked(tags.end, ids)
    parts, rules = [], []
    for index, (key, value) in enumerate(properties.items()):
        if _KEY.fullmatch(key) is None:
            raise NoTaggedArgumentsError
        rule = f"value_{number}_{index}"
        if not is_string_schema((parsed.get("properties") or {}).get(key)):
            defs = {"$defs": schema["$defs"]} if "$defs" in schema else {}
            rules.append(f"{rule}: {lark_json({**value, **defs} if isinstance(value, Mapping) else {})}")
            text = f"SPACES? {rule} SPACES? {end}"
        elif (values := strings_of(value)) is None:
            text = "raw"
        else:
            rules.append(f"{rule.upper()}: /\\n?({'|'.join(map(lark_regex, values))})\\n?/")
            text = f"{rule.upper()} {end}"
        part = f"{before} {lark_string(key)} {after} {text}"
        parts.append(part if key in required else f"({part})?")
    yield f"arguments_{number}: {' '.join(parts) or lark_string('')}"
    yield from rules


def strings_of(schema: Any) -> list[str] | None:
    """Return the strings that a schema of strings allows, None for all. Raises NoTaggedArgumentsError."""
    if not isinstance(schema, Mapping) or not schema.keys() <= _STRING_KEYS:
        raise NoTaggedArgumentsError
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            typed = [each for each in schema[keyword] if not (isinstance(each, Mapping) and each.get("type") == "null")]
            if len(typed) != 1 or "enum" in schema or "const" in schema:
                raise NoTaggedArgumentsError
            return strings_of(typed[0])
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if values is None:
        return None
    strings = [value for value in values if isinstance(value, str)]
    if not strings or any("<" in value or value != value.strip() for value in strings):
        raise NoTaggedArgumentsError
    return strings
