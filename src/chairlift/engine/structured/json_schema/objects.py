"""Lowering of keywords of objects: properties, their names and number, and what depends on them."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chairlift.engine.structured.json_schema.all_of_and_any_of import MAX_ALTERNATIVES, all_of, any_of
from chairlift.engine.structured.json_schema.document import TYPES, VALUES_PER_COST, Node, Schema, type_names
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.patterns import ANY, CHARS_PER_COST, grammar_pattern, none_of, one_of
from chairlift.engine.structured.json_schema.value_sets import ANNOTATIONS, type_of

if TYPE_CHECKING:
    from chairlift.engine.structured.json_schema.lowering import Lowering

MAX_DEPENDENCIES = 6
"""Most properties of one schema that others depend on: each one doubles the grammar's alternatives."""

MAX_REF_DEPTH = 16
NOT_COUNTED = "a grammar counts a name that is written twice as two properties"
NOT_OBJECT: Schema = {"type": [name for name in TYPES if name != "object"]}


def allowed_types(node: Node) -> list[str]:
    """Return the types of values that a schema's `type`, `const` and `enum` allow."""
    names = type_names(node.schema)
    values = [node.schema["const"]] if "const" in node.schema else node.schema.get("enum")
    return names if values is None else [name for name in names if name in {type_of(value) for value in values}]


def may_be_object(node: Node) -> bool:
    """Return whether the schema's `type` allows objects."""
    return "object" in type_names(node.schema)


def absent(name: str) -> Schema:
    """Return the values without this property."""
    return {"properties": {name: False}}


def present(*names: str) -> Schema:
    """Return the objects with these properties."""
    return {"type": "object", "required": list(dict.fromkeys(names))}


def for_objects(node: Node, alternatives: list[Schema]) -> list[Schema]:
    """Return alternatives for objects as a conjunct, which leaves other types as they are."""
    others = [NOT_OBJECT] if set(type_names(node.schema)) != {"object"} else []
    return [any_of([*others, *alternatives])]


def _properties(lowering: "Lowering", node: Node) -> list[Schema]:
    part: dict[str, Schema] = {}
    rest = lowering.positive(node.child("additionalProperties")) if "additionalProperties" in node.schema else True
    if "properties" in node.schema:
        names = node.schema["properties"]
        part["properties"] = {name: lowering.positive(node.child("properties", name)) for name in names}
    patterns: dict[str, Schema] = {}
    for pattern in node.schema.get("patternProperties", ()):
        place = node.child("patternProperties", pattern)
        safe = grammar_pattern(pattern, place.pointer, lowering.document.budget)
        # A pattern without a limit of its own matters only where it keeps names out of additionalProperties.
        if (lowered := lowering.positive(place)) is not True or rest is not True:
            patterns[safe] = lowered
    if patterns:
        part["patternProperties"] = patterns
    if rest is not True:
        part["additionalProperties"] = rest
    return [part]


def patterns_of(lowering: "Lowering", node: Node) -> list[str]:
    """Return the expressions of patternProperties as the grammar has them."""
    return [
        grammar_pattern(pattern, node.at("patternProperties"), lowering.document.budget)
        for pattern in node.schema.get("patternProperties", ())
    ]


def _properties_once(keyword: str) -> Callable[["Lowering", Node], list[Schema]]:
    """Return the rule of a keyword that _properties takes together with the others present."""
    unit = ("properties", "patternProperties", "additionalProperties")
    before = unit[: unit.index(keyword)]
    return lambda lowering, node: [] if any(name in node.schema for name in before) else _properties(lowering, node)


def _required(lowering: "Lowering", node: Node) -> list[Schema]:
    return [{"required": list(dict.fromkeys(node.schema["required"]))}] if node.schema["required"] else []


# -- number of properties ----------------------------------------------------------------------------------------------


def _optional(node: Node) -> list[str]:
    """Return the properties that may be absent; llguidance counts properties only if there are none."""
    required = node.schema.get("required", ())
    return [
        name for name, part in node.schema.get("properties", {}).items() if name not in required and part is not False
    ]


def _is_closed(node: Node) -> bool:
    return node.schema.get("additionalProperties") is False and not node.schema.get("patternProperties")


def _min_properties(lowering: "Lowering", node: Node) -> list[Schema]:
    low, optional = int(node.schema["minProperties"]), _optional(node)
    needed = low - len(set(node.schema.get("required", ())))
    if needed <= 0:
        return []
    if needed > 1 and not _is_closed(node):
        raise UnsupportedSchemaError(node.at("minProperties"), f"is {low} beside free names: {NOT_COUNTED}")
    if not optional:
        return [{"minProperties": low}]
    if math.comb(len(optional), min(needed, len(optional))) > MAX_ALTERNATIVES:
        raise UnsupportedSchemaError(
            node.at("minProperties"), f"leaves more than {MAX_ALTERNATIVES} choices of properties, the limit"
        )
    # Each alternative requires as many optional properties as are missing; others may follow.
    alternatives: list[Schema] = [present(*names) for names in itertools.combinations(optional, needed)]
    if not _is_closed(node):
        others = {"properties": dict.fromkeys(optional, False)}
        alternatives.append({"type": "object", "minProperties": low, **others})
    return for_objects(node, alternatives)


def _max_properties(lowering: "Lowering", node: Node) -> list[Schema]:
    high, optional = int(node.schema["maxProperties"]), _optional(node)
    allowed = high - len(set(node.schema.get("required", ())))
    if not optional or allowed < 0:
        return [{"maxProperties": high}] if allowed >= 0 else for_objects(node, [])
    if _is_closed(node):
        if allowed >= len(optional):
            return []
        choices = list(itertools.islice(itertools.combinations(optional, allowed), MAX_ALTERNATIVES + 1))
    else:
        counts = range(min(allowed, len(optional)) + 1)
        each = itertools.chain.from_iterable(itertools.combinations(optional, count) for count in counts)
        choices = list(itertools.islice(each, MAX_ALTERNATIVES + 1))
    if len(choices) > MAX_ALTERNATIVES:
        raise UnsupportedSchemaError(
            node.at("maxProperties"), f"leaves more than {MAX_ALTERNATIVES} choices of properties, the limit"
        )
    # Each alternative lists all optional properties, so it costs as much as they are many.
    lowering.document.budget.add_alternatives(len(choices) * len(optional) // 16, node.at("maxProperties"))
    alternatives: list[Schema] = []
    for names in choices:
        schema: dict[str, Any] = {
            "type": "object", "properties": {name: False for name in optional if name not in names},
        }  # fmt: skip
        if not _is_closed(node):
            schema |= {"maxProperties": high} | ({"required": list(names)} if names else {})
        alternatives.append(schema)
    return for_objects(node, alternatives)


# -- names of properties -----------------------------------------------------------------------------------------------


def _property_names(lowering: "Lowering", node: Node) -> list[Schema]:
    names = _names(lowering, node.child("propertyNames"))
    if names is None:
        return []
    if isinstance(names, list):
        return [{"properties": dict.fromkeys(names, True), "additionalProperties": False}]
    if node.schema.get("patternProperties"):
        raise UnsupportedSchemaError(node.at("propertyNames"), "is not supported together with patternProperties")
    return [{"patternProperties": {names: True}, "additionalProperties": False}]


def _names(lowering: "Lowering", node: Node, depth: int = 0) -> list[str] | str | None:
    """Return the names that a schema allows: a list, a regular expression, or None if it allows all."""
    schema = node.schema
    if isinstance(schema, bool):
        return None if schema else []
    if "string" not in allowed_types(node):
        return []
    keywords = schema.keys() - ANNOTATIONS - {"type"}
    if keywords == {"$ref"} and depth < MAX_REF_DEPTH:
        return _names(lowering, lowering.document.resolve(node, "$ref"), depth + 1)
    if keywords in ({"const"}, {"enum"}):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        lowering.document.budget.spend(len(values) // VALUES_PER_COST, node.pointer)
        return [value for value in values if isinstance(value, str)]
    if keywords == {"pattern"}:
        return grammar_pattern(schema["pattern"], node.at("pattern"), lowering.document.budget)
    if keywords and keywords <= {"minLength", "maxLength"}:
        return (
            f"^{ANY}{{{int(schema.get('minLength', 0))},{int(schema['maxLength']) if 'maxLength' in schema else ''}}}$"
        )
    if keywords == {"not"}:
        excluded = _names(lowering, node.child("not"), depth + 1)
        lowering.document.budget.spend(sum(map(len, excluded or ())) // CHARS_PER_COST, node.pointer)
        if isinstance(excluded, list) and (pattern := none_of(excluded)) is not None:
            return pattern
    if keywords == {"anyOf"} and depth < MAX_REF_DEPTH:
        parts = [_names(lowering, node.child("anyOf", index), depth + 1) for index in range(len(schema["anyOf"]))]
        if None in parts:
            return None
        return "|".join(f"(?:{one_of(part) if isinstance(part, list) else part})" for part in parts if part) or []
    if not keywords:
        return None
    raise UnsupportedSchemaError(node.pointer, f"limits names of properties by {', '.join(sorted(keywords))[:100]}")


# -- dependencies ------------------------------------------------------------------------------------------------------


def dependencies(node: Node) -> list[tuple[str, list[str] | Node]]:
    """Return which properties or which schema each property depends on; JSON Schema 7 has both in `dependencies`."""
    found: list[tuple[str, list[str] | Node]] = []
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, part in node.schema[keyword].items() if node.has(keyword) else ():
            found.append((name, part if isinstance(part, list) else node.child(keyword, name)))
    return [(name, part) for name, part in found if part != [] and not (isinstance(part, Node) and part.schema is True)]


def _dependent(keyword: str) -> Callable[["Lowering", Node], list[Schema]]:
    def rule(lowering: "Lowering", node: Node) -> list[Schema]:
        depends = dependencies(replace(node, schema={keyword: node.schema[keyword]}))
        if len(dependencies(node)) > MAX_DEPENDENCIES:
            raise UnsupportedSchemaError(node.at(keyword), f"has more than {MAX_DEPENDENCIES} properties, the limit")
        parts: list[Schema] = []
        for name, part in depends:
            if isinstance(part, list):
                parts.append(any_of([absent(name), present(name, *part)]))
            else:
                parts.append(any_of([absent(name), all_of([present(name), lowering.positive(part)])]))
        return parts

    return rule


RULES: dict[str, Callable[["Lowering", Node], list[Schema]]] = {
    **{keyword: _properties_once(keyword) for keyword in ("properties", "patternProperties", "additionalProperties")},
    "required": _required, "minProperties": _min_properties, "maxProperties": _max_properties,
    "propertyNames": _property_names,
    **{keyword: _dependent(keyword) for keyword in ("dependentRequired", "dependentSchemas", "dependencies")},
}  # fmt: skip
