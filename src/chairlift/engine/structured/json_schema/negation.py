"""Complement of a JSON Schema: values that fail at least one of its keywords."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chairlift.engine.structured.json_schema import arrays, objects
from chairlift.engine.structured.json_schema.all_of_and_any_of import MAX_ALTERNATIVES, MAX_WAYS_TO_FAIL, all_of, any_of
from chairlift.engine.structured.json_schema.document import TYPES, Node, Schema, type_names
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.patterns import none_of
from chairlift.engine.structured.json_schema.value_keys import key_of
from chairlift.engine.structured.json_schema.value_sets import literal_schema, type_of

if TYPE_CHECKING:
    from chairlift.engine.structured.json_schema.lowering import Lowering

Rule = Callable[["Lowering", Node], list[Schema]]
"""Returns alternatives: schemas whose values all fail the keyword. Raises UnsupportedSchemaError."""

MAX_CLOSED_NAMES = 4
"""Most properties of an object without others whose complement is built: each one doubles the alternatives."""


def lower_negative(lowering: "Lowering", node: Node) -> Schema:
    """Return values that fail a keyword of the schema. Raises UnsupportedSchemaError."""
    alternatives: list[Schema] = []
    for keyword in node.schema:
        if keyword in RULES and node.has(keyword):
            alternatives += RULES[keyword](lowering, node)
    if len(alternatives) > MAX_WAYS_TO_FAIL:
        raise UnsupportedSchemaError(node.pointer, f"has more than {MAX_WAYS_TO_FAIL} ways to fail, the limit")
    return any_of(alternatives)


def _type(lowering: "Lowering", node: Node) -> list[Schema]:
    """Return the other types. Numbers with a fraction are lost if integers are excluded."""
    names = type_names(node.schema)
    rest = [name for name in TYPES if name not in names and not (name == "number" and "integer" in names)]
    return [{"type": rest}] if rest else []


def _const(lowering: "Lowering", node: Node) -> list[Schema]:
    return _without(lowering, node, "const", [node.schema["const"]])


def _enum(lowering: "Lowering", node: Node) -> list[Schema]:
    return _without(lowering, node, "enum", node.schema["enum"])


def _without(lowering: "Lowering", node: Node, keyword: str, values: list[object]) -> list[Schema]:
    """Return all other values: the types without one of them, and each type's other values."""
    by_type: dict[str, dict[str, Any]] = {}
    for value in values:
        by_type.setdefault(type_of(value), {})[key_of(value)] = value
    if len(values) > MAX_ALTERNATIVES and any(type_of(value) != "string" for value in values):
        raise UnsupportedSchemaError(node.at(keyword), f"has {len(values)} values and cannot be negated")
    alternatives: list[Schema] = [{"type": rest}] if (rest := [name for name in TYPES if name not in by_type]) else []
    for name, unique in by_type.items():
        if name in ("array", "object"):
            lowering.document.budget.spend(sum(map(len, unique.values())) // 2, node.at(keyword))
            each = [
                lowering.negative(Node(literal_schema(value), node.at(keyword), node.base)) for value in unique.values()
            ]
            alternatives.append(all_of([{"type": name}, *each]))
        elif name == "string":
            pattern = none_of(str(value) for value in unique.values())
            if pattern is None:
                raise UnsupportedSchemaError(node.at(keyword), "excludes too many or too long strings")
            alternatives.append({"type": "string", "pattern": pattern})
        elif name == "boolean":
            alternatives += [{"const": value} for value in (False, True) if key_of(value) not in unique]
        elif name == "number":
            alternatives += _between(sorted(unique.values()))
    return alternatives


def _between(numbers: list[object]) -> list[Schema]:
    """Return the ranges of numbers without these, which are sorted."""
    bounds = [None, *numbers, None]
    return [
        {"type": "number"}
        | ({"exclusiveMinimum": low} if low is not None else {})
        | ({"exclusiveMaximum": high} if high is not None else {})
        for low, high in itertools.pairwise(bounds)
    ]


def _bound(keyword: str, opposite: str) -> Rule:

    def rule(lowering: "Lowering", node: Node) -> list[Schema]:
        value = node.schema[keyword]
        return [] if isinstance(value, bool) else [{"type": "number", opposite: value}]  # JSON Schema 4

    return rule


def _below(keyword: str, kind: str, opposite: str) -> Rule:
    """Return the rule of a minimum count: its complement is a maximum."""
    return lambda _, node: (
        [{"type": kind, opposite: int(node.schema[keyword]) - 1}] if node.schema[keyword] >= 1 else []
    )


def _above(keyword: str, kind: str, opposite: str) -> Rule:
    """Return the rule of a maximum count: its complement is a minimum."""
    return lambda _, node: [{"type": kind, opposite: int(node.schema[keyword]) + 1}]


def _unsupported(keyword: str, *neutral: object) -> Rule:
    """Return the rule of a keyword without a complement; with a neutral value every value matches it."""

    def rule(lowering: "Lowering", node: Node) -> list[Schema]:
        if any(node.schema[keyword] is value for value in neutral):
            return []
        raise UnsupportedSchemaError(node.at(keyword), "cannot be negated")

    return rule


# -- arrays and objects ------------------------------------------------------------------------------------------------


def _items(lowering: "Lowering", node: Node) -> list[Schema]:
    is_second = "prefixItems" in node.schema and not isinstance(node.schema["items"], list)
    return [] if is_second else arrays.negative_items(lowering, node)


def _properties(lowering: "Lowering", node: Node) -> list[Schema]:
    parts = {name: lowering.negative(node.child("properties", name)) for name in node.schema["properties"]}
    return [{**objects.present(name), "properties": {name: part}} for name, part in parts.items() if part is not False]


def _pattern_properties(lowering: "Lowering", node: Node) -> list[Schema]:
    if any(part is not True and part != {} for part in node.schema["patternProperties"].values()):
        raise UnsupportedSchemaError(node.at("patternProperties"), "cannot be negated")
    return []


def _additional_properties(lowering: "Lowering", node: Node) -> list[Schema]:
    """Return objects with another property than the known ones, for each set of known ones that may be present."""
    part, names = node.schema["additionalProperties"], list(node.schema.get("properties", ()))
    if part is True or part == {}:
        return []
    if part is not False or node.schema.get("patternProperties") or len(names) > MAX_CLOSED_NAMES:
        raise UnsupportedSchemaError(node.at("additionalProperties"), "cannot be negated")
    subsets = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))
    return [
        {
            **objects.present(*present),
            "properties": {name: name in present for name in names},
            "minProperties": len(present) + 1,
        }
        for present in subsets
    ]


def _required(lowering: "Lowering", node: Node) -> list[Schema]:
    return [{"type": "object", **objects.absent(name)} for name in dict.fromkeys(node.schema["required"])]


def _max_properties(lowering: "Lowering", node: Node) -> list[Schema]:
    low = int(node.schema["maxProperties"]) + 1
    if low > 1:
        raise UnsupportedSchemaError(node.at("maxProperties"), f"cannot be negated: {objects.NOT_COUNTED}")
    return [{"type": "object", "minProperties": low}]


def _dependent(keyword: str) -> Rule:
    def rule(lowering: "Lowering", node: Node) -> list[Schema]:
        alternatives: list[Schema] = []
        for name, part in objects.dependencies(replace(node, schema={keyword: node.schema[keyword]})):
            if isinstance(part, list):
                # A property that requires itself never fails.
                alternatives += [all_of([objects.present(name), objects.absent(each)]) for each in part if each != name]
            else:
                alternatives.append(all_of([objects.present(name), lowering.negative(part)]))
        return alternatives

    return rule


# -- combinations of schemas -------------------------------------------------------------------------------------------


def _reference(keyword: str) -> Rule:
    return lambda lowering, node: [lowering.reference(node, keyword, negative=True)]


def _all_of(lowering: "Lowering", node: Node) -> list[Schema]:
    return [lowering.negative(node.child("allOf", index)) for index in range(len(node.schema["allOf"]))]


def _any_of(lowering: "Lowering", node: Node) -> list[Schema]:
    return [all_of(lowering.negative(node.child("anyOf", index)) for index in range(len(node.schema["anyOf"])))]


def _one_of(lowering: "Lowering", node: Node) -> list[Schema]:
    """Return the values that match none or at least two."""
    parts = [node.child("oneOf", index) for index in range(len(node.schema["oneOf"]))]
    if math.comb(len(parts), 2) > MAX_ALTERNATIVES:
        raise UnsupportedSchemaError(node.at("oneOf"), f"has {len(parts)} parts and cannot be negated")
    none = all_of([lowering.negative(part) for part in parts])
    positive = [lowering.define(lowering.positive(part)) for part in parts]
    return [none, *(all_of(two) for two in itertools.combinations(positive, 2))]


def _not(lowering: "Lowering", node: Node) -> list[Schema]:
    return [lowering.positive(node.child("not"))]


def _if(lowering: "Lowering", node: Node) -> list[Schema]:
    condition = node.child("if")
    alternatives: list[Schema] = []
    if "then" in node.schema:
        alternatives.append(all_of([lowering.positive(condition), lowering.negative(node.child("then"))]))
    if "else" in node.schema:
        alternatives.append(all_of([lowering.negative(condition), lowering.negative(node.child("else"))]))
    return alternatives


RULES: dict[str, Rule] = {
    "type": _type, "const": _const, "enum": _enum,
    "minimum": _bound("minimum", "exclusiveMaximum"), "maximum": _bound("maximum", "exclusiveMinimum"),
    "exclusiveMinimum": _bound("exclusiveMinimum", "maximum"),
    "exclusiveMaximum": _bound("exclusiveMaximum", "minimum"),
    "minLength": _below("minLength", "string", "maxLength"), "maxLength": _above("maxLength", "string", "minLength"),
    "minItems": _below("minItems", "array", "maxItems"), "maxItems": _above("maxItems", "array", "minItems"),
    "minProperties": _below("minProperties", "object", "maxProperties"),
    "maxProperties": _max_properties,
    "prefixItems": arrays.negative_items, "items": _items,
    "contains": arrays.negative_contains,
    "properties": _properties, "patternProperties": _pattern_properties, "required": _required,
    "additionalProperties": _additional_properties,
    **{keyword: _dependent(keyword) for keyword in ("dependentRequired", "dependentSchemas", "dependencies")},
    "$ref": _reference("$ref"), "$dynamicRef": _reference("$dynamicRef"),
    "allOf": _all_of, "anyOf": _any_of, "oneOf": _one_of, "not": _not, "if": _if,
    "uniqueItems": _unsupported("uniqueItems", False),
    **{keyword: _unsupported(keyword, True) for keyword in (
        "propertyNames", "unevaluatedItems", "unevaluatedProperties",
    )},
    **{keyword: _unsupported(keyword) for keyword in ("multipleOf", "pattern", "format", "$recursiveRef")},
}  # fmt: skip
