"""Lowering of unevaluatedProperties and unevaluatedItems: one alternative for each way to match the rest of a schema.

Each alternative says which properties and items it evaluates, so that the two keywords become additionalProperties and
items. A value that matches several parts of an anyOf is held to the limits of one of them, which is sound.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from chairlift.engine.structured.json_schema import arrays, objects
from chairlift.engine.structured.json_schema.all_of_and_any_of import MAX_ALTERNATIVES, all_of, any_of
from chairlift.engine.structured.json_schema.document import Node, Schema, is_nullable
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.one_of import one_of_conditions

if TYPE_CHECKING:
    from chairlift.engine.structured.json_schema.lowering import Lowering

KEYWORDS = ("unevaluatedProperties", "unevaluatedItems")
_IN_PLACE = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies")
"""Keywords whose schemas evaluate properties and items of the same value."""

MAX_DEPTH = 24
"""Most schemas of the same value that refer to each other or are nested."""


@dataclass(frozen=True, slots=True)
class _Alternative:
    """One way to match a schema.

    Attributes:
        parts: lowered schemas that a value matches, all of them.
        names: properties that they evaluate.
        patterns: expressions for names of properties that they evaluate.
        has_all_properties: whether they evaluate every property.
        num_items: how many items at the start they evaluate; infinity for all.
        matching: lowered schemas of `contains`, whose items are evaluated.
    """

    parts: tuple[Schema, ...] = ()
    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    has_all_properties: bool = False
    num_items: float = 0
    matching: tuple[Schema, ...] = field(default=())

    def joined(self, other: "_Alternative") -> "_Alternative":
        """Return the way to match both."""
        return _Alternative(
            (*self.parts, *other.parts), self.names | other.names, self.patterns | other.patterns,
            self.has_all_properties or other.has_all_properties, max(self.num_items, other.num_items),
            (*self.matching, *other.matching),
        )  # fmt: skip


def is_used(node: Node) -> bool:
    """Return whether a schema has one of the keywords with an effect."""
    return any(node.has(keyword) and node.schema[keyword] not in (True, {}) for keyword in KEYWORDS)


def lower_unevaluated(lowering: "Lowering", node: Node) -> Schema:
    """Return a supported schema whose values all match `node`. Raises UnsupportedSchemaError."""
    found = _alternatives(lowering, node, 0)
    num_uses = Counter(id(part) for way in found for part in way.parts)
    defined: dict[int, Schema] = {}  # parts of several alternatives are not repeated, which could grow with each level
    for part in itertools.chain.from_iterable(way.parts for way in found):
        if id(part) not in defined:
            defined[id(part)] = lowering.define(part) if num_uses[id(part)] > 1 else part
    return any_of(all_of(defined[id(part)] for part in way.parts) for way in found)


def _alternatives(lowering: "Lowering", node: Node, depth: int) -> list[_Alternative]:
    if isinstance(node.schema, bool):
        return [_Alternative()] if node.schema else []
    if depth > MAX_DEPTH:
        raise UnsupportedSchemaError(node.pointer, f"is one of more than {MAX_DEPTH} schemas of the same value")
    if is_nullable(node.schema):
        return [_Alternative(({"type": "null"},)), *_alternatives(lowering, node.reduced("nullable"), depth)]
    node = lowering.implied_types.add_to(node)
    with lowering.entered(node):
        return [_closed(lowering, node, each) for each in _open_alternatives(lowering, node, depth)]


def _open_alternatives(lowering: "Lowering", node: Node, depth: int) -> list[_Alternative]:
    """Return the ways to match a schema apart from its own unevaluatedProperties and unevaluatedItems."""
    schema, found = node.schema, [_adjacent(lowering, node)]
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            found = _joined(
                lowering, node, found, _alternatives(lowering, lowering.document.resolve(node, keyword), depth + 1)
            )
    for index in range(len(schema.get("allOf", ()))):
        found = _joined(lowering, node, found, _alternatives(lowering, node.child("allOf", index), depth + 1))
    if "anyOf" in schema:
        each = [_alternatives(lowering, node.child("anyOf", index), depth + 1) for index in range(len(schema["anyOf"]))]
        found = _joined(lowering, node, found, list(itertools.chain.from_iterable(each)))
    if "oneOf" in schema:
        found = _joined(lowering, node, found, _one_of(lowering, node, depth))
    if "if" in schema:
        found = _joined(lowering, node, found, _if(lowering, node, depth))
    for name, part in objects.dependencies(node.reduced("dependentRequired")):
        if isinstance(part, Node):
            with_name = _joined(
                lowering, node, [_Alternative((objects.present(name),))], _alternatives(lowering, part, depth + 1)
            )
            found = _joined(lowering, node, found, [_Alternative((objects.absent(name),)), *with_name])
    return found


def _adjacent(lowering: "Lowering", node: Node) -> _Alternative:
    """Return what the schema's keywords evaluate without the schemas that are combined with it."""
    way = _Alternative((lowering.positive(node.reduced(*_IN_PLACE, *KEYWORDS)),))
    if objects.may_be_object(node):
        way = replace(
            way,
            names=frozenset(node.schema.get("properties", ())),
            patterns=frozenset(objects.patterns_of(lowering, node)),
            has_all_properties="additionalProperties" in node.schema,
        )
    if arrays.may_be_array(node):
        has_rest = "items" in node.schema and not isinstance(node.schema["items"], list)
        is_whole = has_rest or arrays.rest_of(node).schema is not True
        way = replace(way, num_items=math.inf if is_whole else len(arrays.prefix_of(node)))
        if "contains" in node.schema:
            way = replace(way, matching=(lowering.define(lowering.strictly(node.child("contains"))),))
    return way


def _joined(
    lowering: "Lowering", node: Node, some: list[_Alternative], others: list[_Alternative]
) -> list[_Alternative]:
    if len(some) * len(others) > MAX_ALTERNATIVES:
        raise UnsupportedSchemaError(node.pointer, f"can be matched in more than {MAX_ALTERNATIVES} ways, the limit")
    num_names = max((len(each.names) for each in (*some, *others)), default=0)
    lowering.document.budget.add_alternatives(len(some) * len(others) * (1 + num_names // 64), node.pointer)
    return [one.joined(other) for one, other in itertools.product(some, others)]


def _one_of(lowering: "Lowering", node: Node, depth: int) -> list[_Alternative]:
    """Return the ways to match one part and no other."""
    conditions = one_of_conditions(lowering, node)
    found = [_Alternative((other,)) for other in conditions.others]
    for index, complements in enumerate(conditions.by_part):
        each = _alternatives(lowering, node.child("oneOf", index), depth + 1)
        found += [replace(one, parts=(*one.parts, *complements)) for one in each]
    return found


def _if(lowering: "Lowering", node: Node, depth: int) -> list[_Alternative]:
    condition = node.child("if")
    holds = _alternatives(lowering, condition, depth + 1)
    if "then" in node.schema:
        holds = _joined(lowering, node, holds, _alternatives(lowering, node.child("then"), depth + 1))
    fails = [_Alternative((lowering.negative(condition),))]
    if "else" in node.schema:
        fails = _joined(lowering, node, fails, _alternatives(lowering, node.child("else"), depth + 1))
    return [*holds, *fails]


def _closed(lowering: "Lowering", node: Node, way: _Alternative) -> _Alternative:
    """Apply the schema's own unevaluatedProperties and unevaluatedItems, which evaluate all that is left."""
    if node.has("unevaluatedProperties"):
        if not way.has_all_properties:
            rest = lowering.positive(node.child("unevaluatedProperties"))
            way = replace(way, parts=(*way.parts, *_properties(way, rest)))
        way = replace(way, has_all_properties=True)
    if node.has("unevaluatedItems"):
        if way.num_items != math.inf:
            rest = any_of([*way.matching, lowering.positive(node.child("unevaluatedItems"))])
            prefix: Schema = {"prefixItems": [True] * int(way.num_items)} if way.num_items else {}
            way = replace(way, parts=(*way.parts, *([{**prefix, "items": rest}] if rest is not True else [])))
        way = replace(way, num_items=math.inf)
    return way


def _properties(way: _Alternative, rest: Schema) -> Iterable[Schema]:
    if rest is True:
        return []
    part: dict[str, Schema] = {"additionalProperties": rest}
    if way.names:
        part["properties"] = dict.fromkeys(sorted(way.names), True)
    if way.patterns:
        part["patternProperties"] = dict.fromkeys(sorted(way.patterns), True)
    return [part]
