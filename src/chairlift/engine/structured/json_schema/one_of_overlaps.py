"""means_any_of: whether two overlapping parts of a oneOf are alternatives that a value may match both of.

JSON Schema forbids the values that match two parts. Authors often list a part and a wider one, such as an integer and a
number, and mean a value of either.
"""

from typing import Any

from chairlift.engine.structured.json_schema.document import Node, SchemaDocument, is_nullable, type_names
from chairlift.engine.structured.json_schema.value_sets import (
    ANNOTATIONS,
    MAX_REF_DEPTH,
    finite_values,
    has_type,
    key_of,
)


def means_any_of(document: SchemaDocument, one: Node, other: Node) -> bool:
    """Return whether exactly one of two overlapping parts leaves out values that the schema's author means.

    That is so if a part is contained in the other one, if the complement of integers among numbers is needed, which
    no grammar has, or if an object with the required properties of one part has those of the other, too.
    """
    one, other = _resolved(document, one), _resolved(document, other)
    if is_contained(document, one, other) or is_contained(document, other, one):
        return True
    if isinstance(one.schema, bool) or isinstance(other.schema, bool):
        return False
    mine, yours = set(type_names(one.schema)), set(type_names(other.schema))
    if _has_integers(mine) != _has_integers(yours) and {"integer", "number"} <= mine | yours:
        return True
    required, also_required = set(one.schema.get("required", ())), set(other.schema.get("required", ()))
    return mine == yours == {"object"} and (required <= also_required or also_required <= required)


def is_integer_in_number(document: SchemaDocument, one: Node, other: Node) -> bool:
    """Return whether one of two schemas has integers of the numbers of the other one, and both name these types."""
    one, other = _resolved(document, one), _resolved(document, other)
    for inner, outer in ((one, other), (other, one)):
        if isinstance(inner.schema, dict) and isinstance(outer.schema, dict):
            names = _explicit_types(inner), _explicit_types(outer)
            if "integer" in names[0] - names[1] and "number" in names[1] and is_contained(document, inner, outer):
                return True
    return False


def is_contained(document: SchemaDocument, inner: Node, outer: Node) -> bool:
    """Return whether each value of a schema certainly matches another one."""
    inner, outer = _resolved(document, inner), _resolved(document, outer)
    if isinstance(outer.schema, bool) or isinstance(inner.schema, bool):
        is_all = outer.schema is True or (outer.schema is not False and not _keywords(outer))
        return is_all or inner.schema is False
    document.budget.remaining_comparisons -= 1
    if is_nullable(inner.schema) and not is_nullable(outer.schema):
        return False
    values, names = finite_values(document, inner), type_names(outer.schema)
    if values is not None:
        among = finite_values(document, outer)
        if among is not None:
            return {key_of(value) for value in values} <= {key_of(value) for value in among}
        if _keywords(outer) <= {"type"}:
            return all(has_type(value, names) for value in values)
    if not all(name in names or (name == "integer" and "number" in names) for name in type_names(inner.schema)):
        return False
    return inner.base == outer.base and all(
        name in inner.schema and _is_equal(inner.schema[name], outer.schema[name])
        for name in _keywords(outer) - {"type"}
    )


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; the comparison of Python, which is fast, has True equal 1."""
    return bool(one == other) and key_of(one) == key_of(other)


def _resolved(document: SchemaDocument, node: Node) -> Node:
    """Return what a schema that is only a reference refers to."""
    for _ in range(MAX_REF_DEPTH):
        if isinstance(node.schema, bool) or _keywords(node) != {"$ref"}:
            break
        node = document.resolve(node, "$ref")
    return node


def _keywords(node: Node) -> set[str]:
    return set(node.schema) - ANNOTATIONS


def _explicit_types(node: Node) -> set[str]:
    return set(type_names(node.schema)) if "type" in node.schema else set()


def _has_integers(names: set[str]) -> bool:
    """Return whether integers are the only numbers of these types."""
    return "integer" in names and "number" not in names
