"""PossibleTypes: the types of the values that a JSON Schema may match, and the schemas that all of them match."""

import itertools
import math
from collections import deque
from collections.abc import Iterator
from typing import Any

from chairlift.engine.structured.json_schema.document import (
    ALL_TYPES,
    Node,
    Schema,
    SchemaDocument,
    is_nullable,
    type_names,
    types_in_common,
)
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.implied_types import ImpliedTypes
from chairlift.engine.structured.json_schema.pair_results import PairResults
from chairlift.engine.structured.json_schema.value_keys import key_of
from chairlift.engine.structured.json_schema.value_sets import MAX_REF_DEPTH, has_type

MAX_CONJUNCTS = 16
"""Most schemas that are taken together with one, as each of its values matches them, too."""

MAX_TAGS, MAX_TAG_VALUES = 8, 64
"""Most properties, and values of each, in which objects are compared before anything else of them."""

_OBJECT = frozenset({"object"})
_LISTS = ("allOf", "anyOf", "oneOf")


class PossibleTypes:
    """The types of the schemas of one document, implied ones among them; too many where they are hard to find.

    Attributes:
        document: the schemas with their references.
        disjoint: which pairs of schemas share no value.
        contained: which schemas are contained in other ones.
    """

    def __init__(self, document: SchemaDocument, implied_types: ImpliedTypes) -> None:
        self.document = document
        self._implied_types = implied_types
        self._found: dict[tuple[str, frozenset[str] | None], frozenset[str]] = {}
        self._conjuncts: dict[tuple[str, frozenset[str]], list[Node]] = {}
        self._tags: dict[tuple[str, frozenset[str]], dict[str, frozenset[str]]] = {}
        self._values: dict[tuple[str, frozenset[str], bool], dict[str, Any] | None] = {}
        self.disjoint = PairResults()
        self.contained = PairResults()

    def of(self, node: Node, depth: int = 0) -> frozenset[str]:
        """Return the types of the values that match a schema and have its `value_types`."""
        most = ALL_TYPES if node.value_types is None else node.value_types
        if isinstance(node.schema, bool):
            return most if node.schema else frozenset()
        key = node.pointer, node.value_types
        if key not in self._found:
            if depth > MAX_REF_DEPTH or self.document.budget.remaining_comparisons < 0:
                return most
            self._found[key] = most  # for a schema within itself
            self._found[key] = self._find(node, most, depth)
        return self._found[key]

    def _find(self, node: Node, most: frozenset[str], depth: int) -> frozenset[str]:
        self.document.budget.compare(min(depth, 1), _num_parts(node))
        typed = self._implied_types.add_to(node)
        found = types_in_common(self._implied_types.stated_by(node), set(type_names(typed.schema)))
        for each in (*self._targets(typed), *_parts(typed, "allOf")):
            found = types_in_common(found, self.of(each, depth + 1))
        for keyword in ("anyOf", "oneOf"):
            if keyword in typed.schema:
                found = types_in_common(
                    found, frozenset[str]().union(*(self.of(each, depth + 1) for each in _parts(typed, keyword)))
                )
        if is_nullable(node.schema):
            found |= {"null"}
        return types_in_common(found, most)

    def conjuncts(self, node: Node) -> list[Node]:
        """Return schemas that each value of a schema matches, itself first, with the types that the values have.

        They are those of allOf and `$ref`, and the one of anyOf and oneOf that alone has values of these types. Beyond
        the budget it is the schema alone.
        """
        found: list[Node] = []
        key = node.pointer, self.of(node)
        if key in self._conjuncts:
            return self._conjuncts[key]
        pending = deque([node.limited(key[1])])
        while pending and len(found) < MAX_CONJUNCTS:
            each = pending.popleft()
            if isinstance(each.schema, bool):
                continue
            each = self._implied_types.add_to(each)
            found.append(each)
            if is_nullable(each.schema) and "null" in self.of(each):
                continue  # null needs to match nothing else
            if not self.document.budget.compare(0, _num_parts(each)):
                break
            others = (part for part in _parts(each, "allOf") if part.schema is not True)
            pending += (*self._targets(each), *itertools.islice(others, MAX_CONJUNCTS))
            for keyword in ("anyOf", "oneOf"):
                alternatives = list(itertools.islice(filter(self.of, _parts(each, keyword)), 2))
                pending += alternatives if len(alternatives) == 1 else []
        self._conjuncts[key] = found
        return found

    def alternatives(self, node: Node) -> list[Iterator[Node]]:
        """Return the parts of anyOf and of oneOf, of which each value that is not null by `nullable` matches one."""
        if is_nullable(node.schema) and "null" in self.of(node):
            return []
        return [_parts(node, keyword) for keyword in ("anyOf", "oneOf") if node.schema.get(keyword)]

    def tags(self, node: Node) -> dict[str, frozenset[str]]:
        """Return the keys of the few values of required properties in which objects usually differ from others.

        They are those that `const` and `enum` of the properties list, of the first MAX_TAGS that do so.
        """
        parts = self.conjuncts(node.limited(_OBJECT))
        key = node.pointer, self.of(node)
        if key not in self._tags:
            found = dict[str, frozenset[str]]()
            required = {name for part in parts for name in part.schema.get("required", ())}
            self.document.budget.compare(0, len(required) * len(parts))
            for part in parts:
                properties = part.schema.get("properties", {})
                for name in sorted(required & properties.keys()):
                    if len(found) < MAX_TAGS and _num_listed(properties[name]) <= MAX_TAG_VALUES:
                        child = part.child("properties", name)
                        found[name] = frozenset(self.listed_values(child, self.of(child)) or ())
            self._tags[key] = found
        return self._tags[key]

    def listed_values(self, node: Node, names: frozenset[str]) -> dict[str, Any] | None:
        """Return the values of some types that `const` and `enum` of a schema allow, by their keys; None without them.

        Null by `nullable` is one of them.
        """
        if "const" not in node.schema and "enum" not in node.schema:
            return None
        key = node.pointer, names, is_nullable(node.schema)
        if key not in self._values:
            listed = self.document.keys.listed(node)
            values = {**listed, key_of(None): None} if is_nullable(node.schema) else listed
            self._values[key] = {each: value for each, value in values.items() if has_type(value, list(names))}
        return self._values[key]

    def beside(self, one: Node, other: Node) -> tuple[Node, Node]:
        """Return two schemas as they apply to the values of both: either of them may limit the types by implied ones.

        Outputs match one of the schemas with its implied types, so they have none but the types of the two.
        """
        types = self.of(one) | self.of(other)
        return (
            one if one.value_types is not None else one.limited(types),
            other if other.value_types is not None else other.limited(types),
        )

    def _targets(self, node: Node) -> list[Node]:
        try:
            return [self.document.resolve(node, "$ref", cost=0)] if "$ref" in node.schema else []
        except UnsupportedSchemaError:  # another document
            return []


def _num_listed(schema: Schema) -> float:
    """Return how many values a schema lists; infinity if it lists none."""
    if not isinstance(schema, dict) or not schema.keys() & {"const", "enum"}:
        return math.inf
    return 1 if "const" in schema else len(schema["enum"])


def _num_parts(node: Node) -> int:
    """Return how many schemas allOf, anyOf and oneOf of a schema have."""
    return sum(len(node.schema.get(keyword, ())) for keyword in _LISTS)


def _parts(node: Node, keyword: str) -> Iterator[Node]:
    return (node.child(keyword, index) for index in range(len(node.schema.get(keyword, ()))))
