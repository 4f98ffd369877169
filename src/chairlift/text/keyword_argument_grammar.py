"""keyword_arguments_rules: the grammar of arguments with their names before them: f(a=1, b="x"), call:f{a:1}.

The arguments come in the order of the schema's properties, and values are JSON. Where a format quotes strings with a
marker, an argument that is a string has neither that marker nor another one within it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chairlift.core.lark_grammar_terms import lark_regex, lark_string, text_up_to, text_without
from chairlift.text.call_grammar_rules import lark_json, lark_marked
from chairlift.text.tagged_argument_grammar import NoTaggedArgumentsError, plain_properties, strings_of
from chairlift.text.tool_formats.base import KeywordArguments, ToolSchemas
from chairlift.text.tool_formats.xml_calls import is_string_schema


def keyword_arguments_rules(
    keywords: KeywordArguments, schemas: Mapping[str, Any], parsed: ToolSchemas, ids: Mapping[str, int]
) -> Iterable[str]:
    """Yield the rules arguments_0, arguments_1, ... of each tool. Raises NoTaggedArgumentsError.

    `schemas` are in a form that StructuredOutput accepts. `parsed` are those that the client has sent: an argument that
    these call a string has the format's quotes.
    """
    after, separator = lark_marked(keywords.after_key, ids), lark_marked(keywords.separator, ids)
    yield "KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/"
    yield f"any_json: {lark_json({})}"
    yield f"any: (KEY {after} any_json ({separator} KEY {after} any_json)*)?"
    if keywords.quote:
        yield from _string_rules(keywords.quote, ids)
    for number, (name, schema) in enumerate(schemas.items()):
        properties = plain_properties(schema)
        if properties is None:
            yield f"arguments_{number}: any"
            continue
        if not all(key.isidentifier() and key.isascii() for key in properties):
            raise NoTaggedArgumentsError
        strings = parsed.get(name, {}).get("properties") or {}
        parts = []
        for index, (key, value) in enumerate(properties.items()):
            if keywords.quote and is_string_schema(strings.get(key)):
                text = _string_of(value, keywords.quote, ids)
            else:
                text = f"value_{number}_{index}"
                defs = {"$defs": schema["$defs"]} if "$defs" in schema else {}
                yield f"{text}: {lark_json({**value, **defs} if isinstance(value, Mapping) else {})}"
            parts.append((f"{lark_string(key)} {after} {text}", key in (schema.get("required") or ())))
        yield from _rules_of(f"arguments_{number}", parts, separator)


def _rules_of(name: str, parts: Sequence[tuple[str, bool]], separator: str) -> Iterable[str]:
    """Yield the rules of arguments, each with whether it is required: a separator stands between those that are there.

    first_i is what may stand from argument i on where none stands before it, and next_i the same behind another one.
    """
    yield f"{name}: {name}_first_0"
    for index, (part, is_required) in enumerate(parts):
        first, following = f"{name}_first_{index}", f"{name}_next_{index}"
        rest = f"{name}_next_{index + 1}"
        yield f"{first}: {part} {rest}" + ("" if is_required else f" | {name}_first_{index + 1}")
        yield f"{following}: {separator} {part} {rest}" + ("" if is_required else f" | {rest}")
    yield f"{name}_first_{len(parts)}: {lark_string('')}"
    yield f"{name}_next_{len(parts)}: {lark_string('')}"


def _string_rules(quote: str, ids: Mapping[str, int]) -> Iterable[str]:
    marker, excluded = lark_marked(quote, ids), lark_regex(quote)
    if quote in ids:
        yield f"string: {marker} STRING? {marker}"
        yield f"STRING: {text_without(excluded)}"
    else:
        yield f"string: {marker} STRING_AND_END"
        yield f"STRING_AND_END: {text_up_to(excluded, excluded)}"


def _string_of(schema: Any, quote: str, ids: Mapping[str, int]) -> str:
    """Return a string within its quotes, as part of a rule: any string, or one of those that the schema names."""
    values = strings_of(schema)
    if values is None:
        return "string"
    if any(quote in value for value in values):
        raise NoTaggedArgumentsError
    marker = lark_marked(quote, ids)
    return f"{marker} ({' | '.join(map(lark_string, values))}) {marker}"
