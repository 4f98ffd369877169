"""Conjunctions and disjunctions of lowered schemas."""

from collections.abc import Iterable

from chairlift.engine.structured.json_schema.document import Schema

MAX_ALTERNATIVES = 64
"""Most alternatives that one keyword may become."""

MAX_WAYS_TO_FAIL = 2 * MAX_ALTERNATIVES
"""Most alternatives that the complement of one schema may become."""

_UNITS = (
    frozenset({"properties", "patternProperties", "additionalProperties"}), frozenset({"prefixItems", "items"}),
)  # fmt: skip
"""Keywords that depend on each other, so that those of two schemas are not put together."""


def all_of(parts: Iterable[Schema]) -> Schema:
    """Return the conjunction of lowered schemas, in one object as far as their keywords allow it."""
    merged: dict[str, Schema] = {}
    rest: list[Schema] = []
    for part in parts:
        if part is False:
            return False
        if part is True or not part:
            continue
        names = part.keys()
        # Together these would mean something else: the same keyword twice, or one that refers to its neighbours.
        if names & merged.keys() or any(names & unit and merged.keys() & unit for unit in _UNITS):
            rest.append(part)
        else:
            merged |= part
    if rest and "allOf" in merged:
        rest = [*merged.pop("allOf"), *rest]
    return {**merged, "allOf": rest} if rest else merged or True


def any_of(alternatives: Iterable[Schema]) -> Schema:
    """Return the disjunction of lowered schemas."""
    kept: list[Schema] = []
    for alternative in alternatives:
        if alternative is True:
            return True
        if alternative is not False:
            kept.append(alternative)
    return False if not kept else kept[0] if len(kept) == 1 else {"anyOf": kept}
