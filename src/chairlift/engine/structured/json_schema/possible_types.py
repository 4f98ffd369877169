"""PossibleTypes: the types of the values that a JSON Schema may match, and the schemas that all of them match."""

from chairlift.engine.structured.json_schema.document import (
    ALL_TYPES,
    Node,
    SchemaDocument,
    is_nullable,
    type_names,
    types_in_common,
)
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.implied_types import ImpliedTypes
from chairlift.engine.structured.json_schema.value_sets import MAX_REF_DEPTH

MAX_CONJUNCTS = 16
"""Most schemas that are taken together with one, as each of its values matches them, too."""


class PossibleTypes:
    """The types of the schemas of one document, implied ones among them; too many where they are hard to find.

    Attributes:
        document: the schemas with their references.
    """

    def __init__(self, document: SchemaDocument, implied_types: ImpliedTypes) -> None:
        self.document = document
        self._implied_types = implied_types
        self._found: dict[tuple[str, frozenset[str] | None], frozenset[str]] = {}
        self._conjuncts: dict[tuple[str, frozenset[str]], list[Node]] = {}

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
        if depth:
            self.document.budget.remaining_comparisons -= 1
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

        They are those of allOf and `$ref`, and the one of anyOf and oneOf that alone has values of these types.
        """
        found: list[Node] = []
        key = node.pointer, self.of(node)
        if key in self._conjuncts:
            return self._conjuncts[key]
        pending = [node.limited(key[1])]
        while pending and len(found) < MAX_CONJUNCTS:
            each = pending.pop(0)
            if isinstance(each.schema, bool):
                continue
            each = self._implied_types.add_to(each)
            found.append(each)
            if is_nullable(each.schema) and "null" in self.of(each):
                continue  # null needs to match nothing else
            pending += (*self._targets(each), *_parts(each, "allOf"))
            for keyword in ("anyOf", "oneOf"):
                alternatives = [part for part in _parts(each, keyword) if self.of(part)]
                pending += alternatives if len(alternatives) == 1 else []
        self._conjuncts[key] = found
        return found

    def alternatives(self, node: Node) -> list[list[Node]]:
        """Return the parts of anyOf and of oneOf, of which each value that is not null by `nullable` matches one."""
        if is_nullable(node.schema) and "null" in self.of(node):
            return []
        return [_parts(node, keyword) for keyword in ("anyOf", "oneOf") if keyword in node.schema]

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


def _parts(node: Node, keyword: str) -> list[Node]:
    return [node.child(keyword, index) for index in range(len(node.schema.get(keyword, ())))]
