"""is_contained: whether each value of a JSON Schema certainly matches another one."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from chairlift.engine.structured.json_schema import arrays
from chairlift.engine.structured.json_schema.disjoint_schemas import are_disjoint, required_of
from chairlift.engine.structured.json_schema.document import (
    APPLIES_TO,
    KEYWORDS,
    Node,
    cost_of,
    is_nullable,
    type_names,
    types_in_common,
)
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.patterns import KNOWN_FORMATS, OTHER_FORMATS, UNENFORCED_FORMATS
from chairlift.engine.structured.json_schema.possible_types import PossibleTypes
from chairlift.engine.structured.json_schema.value_keys import key_of
from chairlift.engine.structured.json_schema.value_sets import MAX_REF_DEPTH, type_of

_NO_LIMITS = frozenset({"type", "nullable", "then", "else", "minContains", "maxContains"})
"""Keywords that are compared together with another one."""

_PROPERTIES = ("properties", "patternProperties", "additionalProperties")
_ITEMS = ("prefixItems", "items", "additionalItems")
_UNITS = (_PROPERTIES, _ITEMS)
_CONTAINS = ("contains", "minContains", "maxContains")
_LIMITS_OF_VALUES = frozenset({
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minimum", "exclusiveMinimum",
    "maximum", "exclusiveMaximum", "multipleOf", "required",
})  # fmt: skip


def is_contained(types: PossibleTypes, inner: Node, outer: Node, depth: int = 0) -> bool:
    """Return whether each value of a schema, which has its implied types, certainly matches another one."""
    if outer.schema is True or inner.schema is False or inner.schema is outer.schema:
        types.document.budget.contain(0, steps=1)
        return True
    if not types.document.budget.contain(cost_of(inner) + cost_of(outer) - 1):
        return False
    found = types.contained.get(inner, outer, depth)
    if found is None:
        found = types.contained.add(inner, outer, depth, holds=_is_contained(types, inner, outer, depth))
    return found


def _is_contained(types: PossibleTypes, inner: Node, outer: Node, depth: int) -> bool:
    names = types.of(inner)
    if is_nullable(outer.schema):
        names -= {"null"}
    if outer.schema is False or not names:
        return not names
    if depth > MAX_REF_DEPTH or names != types_in_common(names, set(type_names(outer.schema))):
        return False
    inner = Node({}, f"any at {inner.pointer}", inner.base) if inner.schema is True else inner
    inner = inner.limited(names)
    parts = types.conjuncts(inner)
    if not types.document.budget.contain(sum(map(cost_of, parts[1:]))):
        return False
    if any(part.pointer == outer.pointer for part in parts):
        return True
    if "null" in names and any(is_nullable(part.schema) for part in parts):  # null needs to match nothing else of these
        null = Node({"type": "null"}, f"null at {inner.pointer}", inner.base)
        return all(is_contained(types, each, outer, depth + 1) for each in (inner.limited(names - {"null"}), null))
    comparison = _Comparison(types, inner, parts, names, depth)
    if all(comparison.holds(keyword, outer) for keyword in outer.schema):
        return True
    return any(
        all(is_contained(types, each, outer, depth + 1) for each in alternatives)
        for part in parts
        for alternatives in types.alternatives(part)
    )


@dataclass(slots=True)
class _Comparison:
    """The inner schema of a comparison.

    Attributes:
        types: the types of all schemas.
        inner: the schema.
        parts: schemas that each of its values matches, itself among them.
        names: the types of its values.
        depth: how many comparisons this one is part of.
    """

    types: PossibleTypes
    inner: Node
    parts: list[Node]
    names: frozenset[str]
    depth: int
    _values: list[dict[str, Any]] | None = None

    def holds(self, keyword: str, outer: Node) -> bool:
        """Return whether all values certainly match a keyword of another schema."""
        kind = APPLIES_TO.get(keyword)
        is_about = kind is None or kind in self.names or (kind == "number" and "integer" in self.names)
        if keyword not in KEYWORDS or keyword in _NO_LIMITS or not is_about:
            return True
        if any(keyword in unit and any(map(outer.schema.__contains__, unit[: unit.index(keyword)])) for unit in _UNITS):
            return True  # compared with the first keyword of these
        if keyword in _APPLICATORS:
            return _APPLICATORS[keyword](self, outer)
        values = self.values()
        if keyword in ("const", "enum"):
            return values is not None and values.keys() <= self.types.document.keys.of_list(outer, keyword).keys()
        if values is not None and keyword in _LIMITS_OF_VALUES:
            return self.look_up(len(values)) and all(
                _value_matches(value, keyword, outer.schema) for value in values.values()
            )
        if keyword in _RULES:
            return any(_RULES[keyword](self, part, outer) for part in self.parts)
        return any(self.is_equal(part, outer, keyword) for part in self.parts)

    def values(self) -> dict[str, Any] | None:
        """Return all values by their keys, if they are listed or of types that have few."""
        if self._values is None:
            found = [self.types.listed_values(part, self.names) for part in self.parts]
            if self.names <= {"null", "boolean"}:
                found.append({key_of(value): value for value in (None, False, True) if type_of(value) in self.names})
            sets = sorted((values for values in found if values is not None), key=len)
            if len(sets) > 1 and self.look_up(len(sets[0]) * len(sets)):
                sets = [{key: value for key, value in sets[0].items() if all(key in each for each in sets)}]
            self._values = sets[:1]
        return self._values[0] if self._values else None

    def are_contained(self, inner: Node, outer: Node) -> bool:
        """Return whether the schema of a part of the value is contained in another one."""
        return is_contained(self.types, inner, outer, self.depth + 1)

    def is_equal(self, part: Node, outer: Node, keyword: str) -> bool:
        """Return whether two schemas have the same value of a keyword."""
        keys = self.types.document.keys
        return part.base == outer.base and keys.of(part, keyword) == keys.of(outer, keyword)

    def parts_of(self, outer: Node, keyword: str) -> Iterator[Node]:
        """Yield the schemas of a keyword with several ones as far as the budget allows it."""
        for index in range(len(outer.schema[keyword])):
            if not self.look_up(1):
                return
            yield outer.child(keyword, index)

    def look_up(self, steps: int) -> bool:
        """Count steps of the comparison. Returns whether the budget allows them."""
        return self.types.document.budget.contain(0, steps)


# -- keywords that apply schemas to the same value ---------------------------------------------------------------------


def _reference(comparison: _Comparison, outer: Node) -> bool:
    try:
        target = comparison.types.document.resolve(outer, "$ref", cost=0)
    except UnsupportedSchemaError:  # another document
        return False
    return comparison.are_contained(comparison.inner, target)


def _all_of(comparison: _Comparison, outer: Node) -> bool:
    return all(comparison.are_contained(comparison.inner, child) for child in comparison.parts_of(outer, "allOf")) and (
        comparison.look_up(0)
    )


def _any_of(comparison: _Comparison, outer: Node) -> bool:
    return any(comparison.are_contained(comparison.inner, child) for child in comparison.parts_of(outer, "anyOf"))


def _one_of(comparison: _Comparison, outer: Node) -> bool:
    """Return whether all values match one part and certainly none of the others."""
    types, num_matching = comparison.types, 0
    for child in comparison.parts_of(outer, "oneOf"):
        if num_matching == 0 and comparison.are_contained(comparison.inner, child):
            num_matching = 1
        elif not are_disjoint(types, comparison.inner, child.limited(comparison.names)):
            return False
    return num_matching == 1 and comparison.look_up(0)


def _required(comparison: _Comparison, outer: Node) -> bool:
    values = comparison.values()
    found = required_of(comparison.parts)
    return found >= set(outer.schema["required"]) or (
        values is not None
        and comparison.look_up(len(values) * len(outer.schema["required"]))
        and all(_value_matches(value, "required", outer.schema) for value in values.values())
    )


_APPLICATORS: dict[str, Callable[[_Comparison, Node], bool]] = {
    "$ref": _reference, "allOf": _all_of, "anyOf": _any_of, "oneOf": _one_of, "required": _required,
}  # fmt: skip

# -- keywords of one schema --------------------------------------------------------------------------------------------

_Rule = Callable[[_Comparison, Node, Node], bool]
"""Returns whether values that match a schema certainly match a keyword of another one."""


def _at_least(keyword: str) -> _Rule:
    def rule(comparison: _Comparison, part: Node, outer: Node) -> bool:
        low: float = part.schema.get(keyword, 0)
        if keyword == "minProperties":
            low = max(low, len(required_of([part])))
        return low >= float(outer.schema[keyword])

    return rule


def _at_most(keyword: str) -> _Rule:
    def rule(comparison: _Comparison, part: Node, outer: Node) -> bool:
        high: float = arrays.longest(part) if keyword == "maxItems" else part.schema.get(keyword, math.inf)
        return high <= float(outer.schema[keyword])

    return rule


def _number_bound(sign: int) -> _Rule:
    """Return the rule of the lower bounds of numbers, or with sign -1 of the upper ones."""

    def rule(comparison: _Comparison, part: Node, outer: Node) -> bool:
        bound, is_excluded = _bound(part.schema, sign)
        if "number" not in comparison.names and bound != -math.inf:
            bound, is_excluded = (math.floor(bound) + 1 if is_excluded else math.ceil(bound)), False
        return (bound, is_excluded) >= _bound(outer.schema, sign)

    return rule


def _bound(schema: dict[str, Any], sign: int) -> tuple[float, bool]:
    """Return the lower bound of the numbers of a schema times `sign`, and whether it is excluded."""
    included, excluded = ("minimum", "exclusiveMinimum") if sign > 0 else ("maximum", "exclusiveMaximum")
    found: list[tuple[float, bool]] = [(-math.inf, False)]
    if included in schema:
        found.append((sign * schema[included], schema.get(excluded) is True))  # JSON Schema 4
    if not isinstance(schema.get(excluded, False), bool):
        found.append((sign * schema[excluded], True))
    return max(found)


def _multiple_of(comparison: _Comparison, part: Node, outer: Node) -> bool:
    inner, divisor = (Fraction(repr(node.schema.get("multipleOf", 0))) for node in (part, outer))
    if inner == 0 and "number" not in comparison.names:
        inner = Fraction(1)
    return inner != 0 and divisor > 0 and (inner / divisor).denominator == 1


def _properties(comparison: _Comparison, part: Node, outer: Node) -> bool:
    """Return whether all properties of a schema's objects match properties, patternProperties and their rest."""
    names, patterns = outer.schema.get("properties", {}), outer.schema.get("patternProperties", {})
    for name, schema in names.items():
        if not comparison.look_up(len(comparison.parts)):
            return False
        if schema is not True and not any(
            comparison.are_contained(_property(each, name), outer.child("properties", name))
            for each in comparison.parts
        ):
            return False
    mine = part.schema.get("patternProperties", {})
    for pattern in patterns:
        child = part.child("patternProperties", pattern) if pattern in mine else _any(part)
        if not comparison.look_up(1) or not comparison.are_contained(child, outer.child("patternProperties", pattern)):
            return False
    if "additionalProperties" not in outer.schema:
        return True
    rest = [("properties", name) for name in part.schema.get("properties", ()) if name not in names]
    rest += [("patternProperties", pattern) for pattern in mine if pattern not in patterns]
    others, outer_others = _other_property(part), outer.child("additionalProperties")
    return (
        comparison.look_up(len(part.schema.get("properties", ())) + len(mine))
        and comparison.are_contained(others, outer_others)
        and all(comparison.are_contained(part.child(*place), outer_others) for place in rest)
    )


def _property(node: Node, name: str) -> Node:
    """Return the schema of a property."""
    if name in node.schema.get("properties", ()):
        return node.child("properties", name)
    return _any(node) if "patternProperties" in node.schema else _other_property(node)


def _other_property(node: Node) -> Node:
    """Return the schema of properties without one of their own."""
    if "additionalProperties" in node.schema:
        return node.child("additionalProperties")
    return _any(node)


def _any(node: Node) -> Node:
    """Return the schema of any value."""
    return Node(True, node.pointer, node.base)


def _items(comparison: _Comparison, part: Node, outer: Node) -> bool:
    """Return whether all items of a schema's arrays match prefixItems and items."""
    num_prefix_items = max(arrays.num_prefix_items(part), arrays.num_prefix_items(outer))
    longest = arrays.longest(part)
    for index in range(int(min(longest, num_prefix_items))):
        items = arrays.item_of(part, index), arrays.item_of(outer, index)
        if not comparison.look_up(1) or not comparison.are_contained(*items):
            return False
    return longest <= num_prefix_items or comparison.are_contained(arrays.rest_of(part), arrays.rest_of(outer))


def _property_names(comparison: _Comparison, part: Node, outer: Node) -> bool:
    names = part.child("propertyNames") if "propertyNames" in part.schema else _any(part)
    strings = frozenset({"string"})
    return comparison.are_contained(names.limited(strings), outer.child("propertyNames"))


def _format(comparison: _Comparison, part: Node, outer: Node) -> bool:
    is_known = outer.schema["format"] in (*KNOWN_FORMATS, *OTHER_FORMATS, *UNENFORCED_FORMATS)
    return not is_known or comparison.is_equal(part, outer, "format")


def _together(*keywords: str) -> _Rule:
    """Return the rule of keywords that are equal in both schemas."""
    return lambda comparison, part, outer: all(comparison.is_equal(part, outer, keyword) for keyword in keywords)


def _unevaluated(comparison: _Comparison, part: Node, outer: Node) -> bool:
    keywords = outer.schema.keys() & KEYWORDS
    return keywords == part.schema.keys() & KEYWORDS and _together(*keywords)(comparison, part, outer)


_RULES: dict[str, _Rule] = {
    **{keyword: _at_least(keyword) for keyword in ("minLength", "minItems", "minProperties")},
    **{keyword: _at_most(keyword) for keyword in ("maxLength", "maxItems", "maxProperties")},
    **{keyword: _number_bound(1) for keyword in ("minimum", "exclusiveMinimum")},
    **{keyword: _number_bound(-1) for keyword in ("maximum", "exclusiveMaximum")},
    "multipleOf": _multiple_of, "format": _format, "propertyNames": _property_names,
    **dict.fromkeys(_PROPERTIES, _properties), **dict.fromkeys(_ITEMS, _items),
    "contains": _together(*_CONTAINS), "if": _together("if", "then", "else"),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), _unevaluated),
    "uniqueItems": lambda _, part, outer: part.schema.get("uniqueItems", False) or not outer.schema["uniqueItems"],
}  # fmt: skip


# -- listed values -----------------------------------------------------------------------------------------------------


def _value_matches(value: Any, keyword: str, schema: dict[str, Any]) -> bool:
    """Return whether a value matches one of _LIMITS_OF_VALUES."""
    limit = schema[keyword]
    if APPLIES_TO[keyword] != type_of(value):
        return True
    if keyword in ("minLength", "minItems", "minProperties"):
        return len(value) >= float(limit)
    if keyword in ("maxLength", "maxItems", "maxProperties"):
        return len(value) <= float(limit)
    if keyword in ("minimum", "exclusiveMinimum"):
        return (value, False) >= _bound(schema, 1)
    if keyword in ("maximum", "exclusiveMaximum"):
        return (-value, False) >= _bound(schema, -1)
    if keyword == "required":
        return bool(set(limit) <= value.keys())
    return bool(limit > 0 and (Fraction(repr(value)) / Fraction(repr(limit))).denominator == 1)
