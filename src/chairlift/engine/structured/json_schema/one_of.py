"""one_of_conditions: what a value that matches a part of a oneOf must match, too, so that it matches exactly one."""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chairlift.engine.structured.json_schema.budget import MAX_COMPARISONS
from chairlift.engine.structured.json_schema.contained_schemas import is_contained
from chairlift.engine.structured.json_schema.disjoint_schemas import are_disjoint
from chairlift.engine.structured.json_schema.document import ALL_TYPES, TYPES, Node, Schema
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.one_of_overlaps import (
    are_nullable_twice,
    is_integer_in_number,
    means_any_of,
    types_allowed_twice,
)
from chairlift.engine.structured.json_schema.value_sets import finite_values, share_no_value

if TYPE_CHECKING:
    from chairlift.engine.structured.json_schema.lowering import Lowering

MAX_ONE_OF = 24
"""Most parts of a oneOf that overlap with others: each part needs the complements of those."""

MAX_COMPARED_PARTS = 128
"""Most parts of a oneOf that are compared in pairs."""


@dataclass(frozen=True, slots=True)
class OneOfConditions:
    """What makes the values of `oneOf` match exactly one part.

    Attributes:
        by_part: for each part the complements of the parts that overlap with it.
        free_types: types whose values may match several parts.
    """

    by_part: list[list[Schema]]
    free_types: frozenset[str]

    @property
    def others(self) -> list[Schema]:
        """Return the values that match `oneOf` beside those of single parts, as one schema or none."""
        names = [name for name in TYPES if name in self.free_types]
        return [{"type": names[0] if len(names) == 1 else names}] if names and any(self.by_part) else []


def one_of_conditions(lowering: "Lowering", node: Node) -> OneOfConditions:
    """Return what a value that matches a part of `oneOf` must match, too, so that it matches no other part.

    Where the parts are alternatives that a value may match several of, nothing; `oneOf` is ignored then. Raises
    UnsupportedSchemaError.
    """
    parts = [node.child("oneOf", index) for index in range(len(node.schema["oneOf"]))]
    overlaps: list[list[int]] = [[] for _ in parts]
    is_finite = share_no_value([finite_values(lowering.document, part) for part in parts])
    if not is_finite and len(parts) > MAX_COMPARED_PARTS:
        raise UnsupportedSchemaError(node.at("oneOf"), f"has {len(parts)} parts, the limit is {MAX_COMPARED_PARTS}")
    free = frozenset[str]() if is_finite else _types_allowed_twice(lowering, parts)
    # Each part as its outputs are: with its implied types, and without the values that may match several parts.
    limited = [part.limited(lowering.possible_types.of(part) - free) for part in parts]
    for one, other in itertools.combinations(range(0 if is_finite else len(parts)), 2):
        if not are_disjoint(lowering.possible_types, *_beside(limited[one], limited[other])):
            overlaps[one].append(other)
            overlaps[other].append(one)
        if not lowering.document.budget.compare(0):
            raise UnsupportedSchemaError(
                node.at("oneOf"), f"needs too many comparisons: the limit of a request is {MAX_COMPARISONS}"
            )
    means_any_of = _means_any_of(lowering, node, limited, overlaps)
    if free or means_any_of:
        lowering.ignored.append(node.at("oneOf"))
    if means_any_of:
        return OneOfConditions([[] for _ in parts], free)
    needed = sorted(set(itertools.chain.from_iterable(overlaps)))
    if len(needed) > MAX_ONE_OF:
        raise UnsupportedSchemaError(
            node.at("oneOf"), f"has {len(needed)} overlapping parts, the limit is {MAX_ONE_OF}"
        )
    # Defined once: each complement is a condition of all parts that overlap with its own.
    complements = {index: lowering.define(lowering.negative(_with_all_types(parts[index]))) for index in needed}
    return OneOfConditions([[complements[other] for other in others] for others in overlaps], free)


def _types_allowed_twice(lowering: "Lowering", parts: list[Node]) -> frozenset[str]:
    """Return the types whose values may match several parts of a oneOf."""
    if lowering.is_exact or (lowering.is_strict and not are_nullable_twice(lowering.document, parts)):
        return frozenset()
    found = types_allowed_twice(lowering.possible_types, parts)
    return found & {"null"} if lowering.is_strict else found


def _means_any_of(lowering: "Lowering", node: Node, parts: list[Node], overlaps: list[list[int]]) -> bool:
    """Return whether `oneOf` is meant as anyOf. Raises UnsupportedSchemaError if strict and no value is left."""
    pairs = [(parts[one], parts[other]) for one, others in enumerate(overlaps) for other in others if one < other]
    if lowering.is_exact or not pairs:
        return False
    if any(is_integer_in_number(lowering.possible_types, *pair) for pair in pairs):
        return True
    if not lowering.is_strict:
        return any(means_any_of(lowering.possible_types, *pair) for pair in pairs)
    if all(any(is_contained(lowering.possible_types, part, parts[other]) for other in others)
           for part, others in zip(parts, overlaps, strict=True)):  # fmt: skip
        raise UnsupportedSchemaError(
            node.at("oneOf"), "allows no value, because each part is contained in another one; use anyOf"
        )
    return False


def _with_all_types(part: Node) -> Node:
    """Return a part as it applies to the outputs of another one: values of any type may match it."""
    return part if part.value_types is not None else part.limited(ALL_TYPES)


def _beside(one: Node, other: Node) -> tuple[Node, Node]:
    """Return two parts as they apply to outputs, which match either of them and so have its types."""
    types = (one.value_types or frozenset()) | (other.value_types or frozenset())
    return one.limited(types), other.limited(types)
