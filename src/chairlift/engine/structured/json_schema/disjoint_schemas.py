"""are_disjoint: whether two JSON Schemas certainly share no value."""

import itertools
from collections.abc import Collection, Iterable
from typing import Any

from chairlift.engine.structured.json_schema.document import VALUES_PER_COST, Node, cost_of, types_in_common
from chairlift.engine.structured.json_schema.possible_types import PossibleTypes
from chairlift.engine.structured.json_schema.value_sets import MAX_REF_DEPTH


def are_disjoint(types: PossibleTypes, one: Node, other: Node, depth: int = 0) -> bool:
    """Return whether two schemas certainly share no value of their `value_types`."""
    if one.schema is False or other.schema is False:
        return True
    budget = types.document.budget
    if one.schema is True or other.schema is True or depth > MAX_REF_DEPTH or not budget.compare(0, steps=4):
        return False
    one, other = types.beside(one, other)
    if types_in_common(types.of(one), types.of(other)) == {"object"} and _have_different_tags(types, one, other):
        return True
    if not budget.compare(cost_of(one) + cost_of(other)):
        return False
    found = types.disjoint.get(one, other, depth)
    if found is None:
        found = types.disjoint.add(one, other, depth, holds=_are_disjoint(types, one, other, depth))
    return found


def _have_different_tags(types: PossibleTypes, one: Node, other: Node) -> bool:
    tags, others = types.tags(one), types.tags(other)
    return any(values.isdisjoint(others[name]) for name, values in tags.items() if name in others)


def _are_disjoint(types: PossibleTypes, one: Node, other: Node, depth: int) -> bool:
    shared = types_in_common(types.of(one), types.of(other))
    if not shared:
        return True
    parts, others = (types.conjuncts(node.limited(shared)) for node in (one, other))
    if not types.document.budget.compare(sum(map(cost_of, (*parts[1:], *others[1:])))):
        return False
    sets = [[each for part in some if (each := types.listed_values(part, shared)) is not None]
            for some in (parts, others)]  # fmt: skip
    if any(not values for some in sets for values in some) or any(
        values.keys().isdisjoint(among) for values, among in itertools.product(*sets)
    ):
        return True
    return shared == {"object"} and _differ_in_property(types, parts, others, depth)


def _differ_in_property(types: PossibleTypes, parts: list[Node], others: list[Node], depth: int) -> bool:
    required, also_required = required_of(parts), required_of(others)
    # One of the conjuncts of each was counted with its required properties.
    num_names = len(parts) * len(also_required) + len(others) * len(required)
    if not types.document.budget.compare(0, num_names // VALUES_PER_COST):
        return False
    if _forbid(parts, also_required) or _forbid(others, required):
        return True
    return any(
        are_disjoint(types, part.child("properties", name), other.child("properties", name), depth + 1)
        for name in sorted(required & also_required)
        for part, other in itertools.product(_with_property(parts, name), _with_property(others, name))
    )


def required_of(parts: Iterable[Node]) -> set[str]:
    """Return the properties that some of these schemas require."""
    return {name for part in parts for name in part.schema.get("required", ())}


def _with_property(parts: list[Node], name: str) -> list[Node]:
    return [part for part in parts if name in part.schema.get("properties", ())]


def _forbid(parts: list[Node], names: Collection[str]) -> bool:
    return any(_forbids(part.schema, name) for part in parts for name in names)


def _forbids(schema: dict[str, Any], name: str) -> bool:
    properties = schema.get("properties", {})
    if name in properties or "patternProperties" in schema:
        return properties.get(name) is False
    return schema.get("additionalProperties") is False
