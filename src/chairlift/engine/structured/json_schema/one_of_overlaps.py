"""means_any_of: whether two overlapping parts of a oneOf are alternatives that a value may match both of.

JSON Schema forbids the values that match two parts. Authors often list a part and a wider one, such as an integer and a
number, and mean a value of either.
"""

from collections.abc import Sequence

from chairlift.engine.structured.json_schema import arrays
from chairlift.engine.structured.json_schema.contained_schemas import is_contained
from chairlift.engine.structured.json_schema.disjoint_schemas import are_disjoint, required_of
from chairlift.engine.structured.json_schema.document import (
    KEYWORDS,
    TYPES,
    Node,
    SchemaDocument,
    cost_of,
    is_nullable,
    schemas_of,
    type_names,
    types_in_common,
)
from chairlift.engine.structured.json_schema.possible_types import PossibleTypes
from chairlift.engine.structured.json_schema.value_sets import MAX_REF_DEPTH

_EQUAL, _NARROWER, _DIFFERENT = range(3)


def types_allowed_twice(types: PossibleTypes, parts: Sequence[Node]) -> frozenset[str]:
    """Return the types all of whose values match at least two parts, such as null in parts that are nullable."""
    found = set[str]()
    for name in TYPES:
        among = [part for part in parts if name in types.of(part)]
        every = Node({"type": name}, f"every {name}", "")
        if len(among) > 1 and sum(is_contained(types, every, part) for part in among) > 1:
            found.add(name)
    return frozenset(found)


def are_nullable_twice(document: SchemaDocument, parts: Sequence[Node]) -> bool:
    """Return whether at least two parts allow null by `nullable`, which JSON Schema does not have."""
    return sum(is_nullable(_resolved(document, part).schema) for part in parts) > 1


def means_any_of(types: PossibleTypes, one: Node, other: Node, depth: int = 0) -> bool:
    """Return whether exactly one of two overlapping parts leaves out values that the schema's author means.

    That is so if the parts overlap only by types that their keywords are not about, if one contains all values of the
    other that have a type of both, if the complement of integers among numbers is needed, which no grammar has, or if
    an object with the required properties of one has those of the other, too. Arrays are alternatives if items are.
    """
    if are_disjoint(types, one, other):
        return True
    if depth > MAX_REF_DEPTH or types.document.budget.remaining_comparisons < 0:
        return False
    mine, yours = types.of(one), types.of(other)
    shared = types_in_common(mine, yours)
    for name in shared:
        values, others = (part.limited(frozenset({name})) for part in (one, other))
        if is_contained(types, values, other) or is_contained(types, others, one):
            return True
    parts, other_parts = types.conjuncts(one), types.conjuncts(other)
    if _has_integers(parts) != _has_integers(other_parts) and {"integer", "number"} <= mine | yours:
        return True
    if shared == {"object"}:
        required, also_required = required_of(parts), required_of(other_parts)
        return required <= also_required or also_required <= required
    return shared == {"array"} and any(
        _items_mean_any_of(types, part, other_part, depth) for part in parts for other_part in other_parts
    )


def _items_mean_any_of(types: PossibleTypes, one: Node, other: Node, depth: int) -> bool:
    if not all("items" in node.schema and not arrays.num_prefix_items(node) for node in (one, other)):
        return False
    items, others = arrays.rest_of(one), arrays.rest_of(other)
    if are_disjoint(types, items, others):
        return False
    return means_any_of(types, items.limited(types.of(items)), others.limited(types.of(others)), depth + 1)


def _has_integers(parts: Sequence[Node]) -> bool:
    """Return whether a schema says that integers are its only numbers."""
    return any("type" in part.schema and "integer" in _explicit_types(part) for part in parts) and not any(
        "number" in _explicit_types(part) for part in parts
    )


def is_integer_in_number(types: PossibleTypes, one: Node, other: Node) -> bool:
    """Return whether one of two schemas has integers of the numbers of the other one, and both name these types.

    The schemas may also be those of arrays and objects that are equal apart from that, such as arrays of them.
    """
    document = types.document
    if not document.budget.contain(0):
        return False
    one, other = _resolved(document, one), _resolved(document, other)
    for inner, outer in ((one, other), (other, one)):
        if isinstance(inner.schema, dict) and isinstance(outer.schema, dict):
            names = _explicit_types(inner), _explicit_types(outer)
            shared = types_in_common(types.of(inner), types.of(outer))
            values = inner.limited(shared) if shared == {"integer"} else inner
            if "integer" in names[0] - names[1] and "number" in names[1] and is_contained(types, values, outer):
                return True
        if _difference(types, inner, outer, 0) == _NARROWER:
            return True
    return False


def _difference(types: PossibleTypes, inner: Node, outer: Node, depth: int) -> int:
    """Return whether two schemas are equal, or apart from integers of the first that are numbers in the other."""
    document = types.document
    inner, outer = _resolved(document, inner), _resolved(document, outer)
    is_within = document.budget.contain(cost_of(inner) + cost_of(outer) - 1)
    if inner.schema is outer.schema:
        return _EQUAL
    is_boolean = isinstance(inner.schema, bool) or isinstance(outer.schema, bool)
    if is_boolean or depth > MAX_REF_DEPTH or not is_within or _keywords(inner) != _keywords(outer):
        return _DIFFERENT
    names, others = _explicit_types(inner), _explicit_types(outer)
    found = _EQUAL
    if names != others:
        if names - others != {"integer"} or others - names != {"number"}:
            return _DIFFERENT
        found = _NARROWER
    paths = list[tuple[str | int, ...]]()
    for keyword in sorted(_keywords(inner) - {"type"}):
        own, also = (schemas_of(node, keyword) for node in (inner, outer))
        if not document.budget.contain(0, len(own) + len(also)) or set(own) != set(also):
            return _DIFFERENT
        if not own and document.keys.of(inner, keyword) != document.keys.of(outer, keyword):
            return _DIFFERENT
        if keyword == "dependencies" and _dependent_names(types, inner) != _dependent_names(types, outer):
            return _DIFFERENT
        paths += own
    for path in paths:
        found = max(found, _difference(types, inner.child(*path), outer.child(*path), depth + 1))
        if found == _DIFFERENT:
            break
    return found


def _dependent_names(types: PossibleTypes, node: Node) -> dict[str, list[str]]:
    """Return the properties that others depend on by `dependencies` with a list of names."""
    found = {name: part for name, part in node.schema["dependencies"].items() if isinstance(part, list)}
    types.document.budget.contain(0, len(node.schema["dependencies"]) + sum(map(len, found.values())))
    return found


def _resolved(document: SchemaDocument, node: Node) -> Node:
    """Return what a schema that is only a reference refers to."""
    for _ in range(MAX_REF_DEPTH):
        if isinstance(node.schema, bool) or _keywords(node) != {"$ref"} or not document.budget.contain(0, steps=1):
            break
        node = document.resolve(node, "$ref", cost=0).limited(node.value_types)
    return node


def _keywords(node: Node) -> set[str]:
    return set(node.schema.keys() & KEYWORDS)


def _explicit_types(node: Node) -> set[str]:
    return set(type_names(node.schema)) if "type" in node.schema else set()
