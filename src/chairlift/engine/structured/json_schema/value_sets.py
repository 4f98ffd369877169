"""Finite sets of values in JSON Schemas: equality, listing and complement."""

from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.engine.structured.json_schema.document import (
    Node,
    Schema,
    SchemaDocument,
    type_names,
)
from chairlift.engine.structured.json_schema.value_keys import key_of

MAX_VALUES = 1000
"""Most values of one enum that are listed."""

MAX_REF_DEPTH = 16
"""Most references that are followed to compare two schemas."""

ANNOTATIONS = frozenset({
    "$id", "$schema", "$anchor", "$dynamicAnchor", "$comment", "$defs", "definitions", "title", "description",
    "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "example",
    "externalDocs",
})  # fmt: skip


def type_of(value: Any) -> str:
    """Return a value's type; numbers of both kinds are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def has_type(value: Any, names: list[str]) -> bool:
    """Return whether a value has one of the types."""
    kind = type_of(value)
    return kind in names or (kind == "number" and "integer" in names and value == int(value))


def finite_values(document: SchemaDocument, node: Node, depth: int = 0) -> dict[str, Any] | None:
    """Return all values that match a schema, by their keys; None if they cannot be listed."""
    schema = node.schema
    if schema is False:
        return {}
    if schema is True or depth > MAX_REF_DEPTH:
        return None
    keywords = schema.keys() - ANNOTATIONS
    if keywords == {"$ref"}:
        return finite_values(document, document.resolve(node, "$ref"), depth + 1)
    if not keywords <= {"type", "enum", "const"} or not keywords:
        return None
    names = type_names(schema)
    if "const" in schema or "enum" in schema:
        if max(len(document.keys.of_list(node, keyword)) for keyword in ("const", "enum")) > MAX_VALUES:
            return None
        values = document.keys.listed(node)
    elif set(names) <= {"boolean", "null"}:
        values = {key_of(value): value for value in (None, False, True)}
    else:
        return None
    document.budget.spend(len(values) // 2, node.pointer)
    return {key: value for key, value in values.items() if has_type(value, names)}


def share_no_value(sets: Sequence[Mapping[str, Any] | None]) -> bool:
    """Return whether all sets, which have the values by their keys, are finite and no two have a common value."""
    keys = [key for values in sets if values is not None for key in values]
    return None not in sets and len(keys) == len(set(keys))


def literal_schema(value: Any) -> Schema:
    """Return a schema without const for one value: its parts in keywords whose complement is known."""
    if isinstance(value, list):
        parts = [{"const": each} for each in value]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    parts_by_name = {name: {"const": each} for name, each in value.items()}
    return {"type": "object", "properties": parts_by_name, "required": list(value), "additionalProperties": False}
