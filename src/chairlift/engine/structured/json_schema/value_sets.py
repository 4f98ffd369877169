"""Finite sets of values in JSON Schemas: equality, listing, complement, and schemas that share no value."""

import json
from collections.abc import Sequence
from typing import Any

from chairlift.engine.structured.json_schema.document import (
    Node,
    Schema,
    SchemaDocument,
    cost_of,
    is_nullable,
    type_names,
)

MAX_VALUES = 1000
"""Most values of one enum that are listed."""

MAX_REF_DEPTH = 16
"""Most references that are followed to compare two schemas."""

ANNOTATIONS = frozenset({
    "$id", "$schema", "$anchor", "$dynamicAnchor", "$comment", "$defs", "definitions", "title", "description",
    "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "example",
    "externalDocs",
})  # fmt: skip


def key_of(value: Any) -> str:
    """Return a text that is the same for equal JSON values only; 1.0 equals 1, true does not."""
    return json.dumps(_normal(value), sort_keys=True)


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(each) for each in value]
    return {name: _normal(each) for name, each in value.items()} if isinstance(value, dict) else value


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


def finite_values(document: SchemaDocument, node: Node, depth: int = 0) -> list[Any] | None:
    """Return all values that match a schema, each once; None if they cannot be listed."""
    schema = node.schema
    if schema is False:
        return []
    if schema is True or depth > MAX_REF_DEPTH:
        return None
    keywords = schema.keys() - ANNOTATIONS
    if keywords == {"$ref"}:
        return finite_values(document, document.resolve(node, "$ref"), depth + 1)
    if not keywords <= {"type", "enum", "const"} or not keywords:
        return None
    names = type_names(schema)
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if "enum" in schema:
            among = {key_of(value) for value in schema["enum"]}
            values = [value for value in values if key_of(value) in among]
    elif set(names) <= {"boolean", "null"}:
        values = [None, False, True]
    else:
        return None
    if len(values) > MAX_VALUES:
        return None
    document.budget.spend(len(values) // 2, node.pointer)
    return list({key_of(value): value for value in values if has_type(value, names)}.values())


def share_no_value(sets: Sequence[list[Any] | None]) -> bool:
    """Return whether all sets are finite and no two of them have a common value."""
    keys = [key_of(value) for values in sets if values is not None for value in values]
    return None not in sets and len(keys) == len(set(keys))


def literal_schema(value: Any) -> Schema:
    """Return a schema without const for one value: its parts in keywords whose complement is known."""
    if isinstance(value, list):
        parts = [{"const": each} for each in value]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    parts_by_name = {name: {"const": each} for name, each in value.items()}
    return {"type": "object", "properties": parts_by_name, "required": list(value), "additionalProperties": False}


def are_disjoint(document: SchemaDocument, one: Node, other: Node, depth: int = 0) -> bool:
    """Return whether two schemas certainly share no value."""
    if one.schema is False or other.schema is False:
        return True
    document.budget.remaining_comparisons -= cost_of(one) + cost_of(other)
    if one.schema is True or other.schema is True or depth > MAX_REF_DEPTH:
        return False
    if document.budget.remaining_comparisons < 0:
        return False
    for node, rest in ((one, other), (other, one)):
        if "$ref" in node.schema and are_disjoint(document, document.resolve(node, "$ref"), rest, depth + 1):
            return True
    mine, yours = _kinds(one.schema), _kinds(other.schema)
    if not mine & yours:
        return True
    values, others = _values(one.schema), _values(other.schema)
    if values is not None and others is not None and not values & others:
        return True
    return mine == yours == {"object"} and _differ_in_property(document, one, other, depth)


def _differ_in_property(document: SchemaDocument, one: Node, other: Node, depth: int) -> bool:
    parts, others = one.schema.get("properties", {}), other.schema.get("properties", {})
    required, also_required = set(one.schema.get("required", ())), set(other.schema.get("required", ()))
    if any(_forbids(one.schema, name) for name in also_required) or any(
        _forbids(other.schema, name) for name in required
    ):
        return True
    return any(
        are_disjoint(document, one.child("properties", name), other.child("properties", name), depth + 1)
        for name in sorted(required & also_required)
        if name in parts and name in others
    )


def _forbids(schema: dict[str, Any], name: str) -> bool:
    parts = schema.get("properties", {})
    if name in parts or "patternProperties" in schema:
        return parts.get(name) is False
    return schema.get("additionalProperties") is False


def _kinds(schema: dict[str, Any]) -> set[str]:
    """Return the types of the values that a schema may match."""
    kinds = {"number" if name == "integer" else name for name in type_names(schema)}
    for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
        if values is not None:
            kinds &= {type_of(value) for value in values}
    return kinds | {"null"} if is_nullable(schema) else kinds


def _values(schema: dict[str, Any]) -> set[str] | None:
    if is_nullable(schema):
        return None
    if "const" in schema:
        return {key_of(schema["const"])}
    return {key_of(value) for value in schema["enum"]} if "enum" in schema else None
