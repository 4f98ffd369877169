"""ImpliedTypes: the types that a JSON Schema without `type` means, by the keywords that it has.

JSON Schema lets {"properties": ...} match a number, because `properties` limits objects only. No author of a schema
means that number, so outputs have the types that the keywords are about.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from chairlift.engine.structured.json_schema.document import (
    ALL_TYPES,
    APPLIES_TO,
    KEYWORDS,
    TYPES,
    Node,
    SchemaDocument,
    is_nullable,
    schemas_of,
    type_names,
    types_in_common,
)
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.patterns import KNOWN_FORMATS, OTHER_FORMATS
from chairlift.engine.structured.json_schema.value_sets import type_of

_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("then", "else")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_REFERENCES = frozenset({"$ref", "$dynamicRef"})
_INNER = frozenset({*_IN_PLACE_LISTS, *_IN_PLACE, *_IN_PLACE_MAPS, "if", "not"})
INNER_KEYWORDS = _INNER | _REFERENCES
"""Keywords whose schemas apply to the value of the schema that has them."""

_TYPE_KEYWORDS = frozenset({"type", "enum", "const", "$dynamicRef", "$recursiveRef"})
"""Keywords that say which types a value may have; where a dynamic reference goes is not known here."""
_UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})

MAX_SEARCHED = 256
"""Most schemas of the same value that are searched for a type; beyond them one of them is taken to say it."""

SEARCHED_PER_COST = 8
"""Searched schemas that are as much work as the lowering of one."""


@dataclass(frozen=True, slots=True)
class _Types:
    """What a schema implies.

    Attributes:
        implied: the types that it means, in the order of TYPES; none if it or another schema of the value says them.
        inner: types that the value has for the schemas of `keywords`, which apply to it, too.
        keywords: keywords whose schemas have no implied types of their own.
    """

    implied: tuple[str, ...]
    inner: frozenset[str] | None = None
    keywords: frozenset[str] = frozenset()


class ImpliedTypes:
    """The implied types of the schemas of one document.

    A schema has some only if neither it, nor a schema that applies to the same value, says which types it allows. They
    are those that its own keywords and those of the schemas limit that it combines by `allOf` and `$ref`.
    """

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._found: dict[tuple[str, frozenset[str] | None], _Types] = {}
        self._stated_types: dict[str, frozenset[str]] = {}

    def add_to(self, node: Node) -> Node:
        """Return a schema with its implied types as its `type`, if it has some, and the types of those inside it.

        Raises ValueError for a malformed reference.
        """
        if isinstance(node.schema, bool):
            return node
        key = node.pointer, node.value_types
        if key not in self._found:
            self._found[key] = self._find(node)
        found, schema = self._found[key], node.schema
        if found.inner is None:
            return node
        if found.implied:
            schema = {"type": found.implied[0] if len(found.implied) == 1 else list(found.implied), **schema}
        return Node(schema, node.pointer, node.base, node.value_types, found.inner, found.keywords)

    def _find(self, node: Node) -> _Types:
        if node.value_types is not None:
            return _Types((), types_in_common(node.value_types, self.stated_by(node)), INNER_KEYWORDS)
        implied = () if _says_type(node) else self._implied(node)
        mentions_type = bool(implied) and self._mentions_type(node)
        if implied and not mentions_type:
            return _Types(implied, frozenset(implied), INNER_KEYWORDS)
        # What only the referenced schema says of itself limits the other conjuncts, but not itself.
        own = stated = self._stated(node.reduced(*_REFERENCES))
        if node.schema.keys() & _REFERENCES and node.schema.keys() & _INNER:
            stated = self._stated(node)
        if stated is not None:
            return _Types((), stated, _INNER if own is None else INNER_KEYWORDS)
        if mentions_type:  # in an alternative, which the other conjuncts must not exclude
            is_own = self._mentions_type(node.reduced(*_REFERENCES))
            return _Types((), ALL_TYPES, _REFERENCES | {"allOf"} if is_own else frozenset({"allOf"}))
        return _Types(())

    def _implied(self, node: Node) -> tuple[str, ...]:
        """Return the types that the keywords of a schema, its allOf and what it refers to limit.

        There are none for a schema that only refers to another one, whose own types are implied there. Null is among
        them if `nullable` allows it in all of those that are combined.
        """
        if not node.schema.keys() & KEYWORDS - _REFERENCES:
            return ()
        found = set[str]()
        for each, _ in self._conjuncts(node):
            found |= {APPLIES_TO[name] for name in each.schema if name in APPLIES_TO and _is_about(name, each)}
        if (
            found
            and not node.schema.keys() & APPLIES_TO.keys() - _UNEVALUATED
            and all(is_nullable(part.schema) for part in self._target(node))
            and all(is_nullable(part) for part in node.schema.get("allOf", ()))
        ):
            found.add("null")
        return tuple(name for name in TYPES if name in found)

    def _stated(self, node: Node) -> frozenset[str] | None:
        """Return the types that a schema, its allOf and what it refers to say; None if none of them says any."""
        found: frozenset[str] | None = None
        for each, may_be_null in self._conjuncts(node):
            if _says_type(each):
                nullable = {"null"} if may_be_null else set[str]()
                found = types_in_common(ALL_TYPES if found is None else found, self.stated_by(each) | nullable)
        return found

    def stated_by(self, node: Node) -> frozenset[str]:
        """Return the types that `type`, `const` and `enum` of a schema allow."""
        if node.pointer not in self._stated_types:
            found = frozenset(type_names(node.schema))
            for values in ([node.schema["const"]] if "const" in node.schema else None, node.schema.get("enum")):
                if values is not None:
                    found = types_in_common(found, {_exact_type(value) for value in values})
            self._stated_types[node.pointer] = found
        return self._stated_types[node.pointer]

    def _conjuncts(self, node: Node) -> list[tuple[Node, bool]]:
        """Return the first MAX_SEARCHED schemas that each value of a schema matches, itself among them.

        Null needs to match none of those that are marked, as `nullable` of one of the others allows it.
        """
        found: list[tuple[Node, bool]] = []
        pending, visited = [(node, False)], set[str]()
        while pending and len(found) < MAX_SEARCHED:
            each, may_be_null = pending.pop()
            if isinstance(each.schema, bool) or each.pointer in visited:
                continue
            visited.add(each.pointer)
            may_be_null = may_be_null or (each is not node and is_nullable(each.schema))
            found.append((each, may_be_null))
            pending += ((inner, may_be_null) for inner in (*self._target(each), *_last_of_all_of(each)))
        self._document.budget.spend(len(found) // SEARCHED_PER_COST, node.pointer)
        return found

    def _mentions_type(self, node: Node) -> bool:
        """Return whether a schema or one that applies to the same value says a type, in some of its alternatives."""
        pending, visited, is_found = [iter([node])], set[str](), False
        while pending and not is_found:
            each = next(pending[-1], None)
            if each is None:
                pending.pop()
            elif each.pointer not in visited:
                visited.add(each.pointer)
                is_found = _says_type(each) or len(visited) > MAX_SEARCHED
                pending.append(itertools.chain(self._target(each), _in_place(each)))
        self._document.budget.spend(len(visited) // SEARCHED_PER_COST, node.pointer)
        return is_found

    def _target(self, node: Node) -> list[Node]:
        """Return what a schema refers to, if it does so within the document."""
        if isinstance(node.schema, bool) or "$ref" not in node.schema:
            return []
        try:
            return [self._document.resolve(node, "$ref")]
        except UnsupportedSchemaError:  # another document
            return []


def _exact_type(value: object) -> str:
    is_integer = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    return "integer" if is_integer else type_of(value)


def _says_type(node: Node) -> bool:
    if isinstance(node.schema, bool):
        return False
    return bool(node.schema.keys() & _TYPE_KEYWORDS)


def _is_about(keyword: str, node: Node) -> bool:
    """Return whether a keyword says that a value has its type; a format may also be one of numbers."""
    return keyword != "format" or node.schema["format"] in (*KNOWN_FORMATS, *OTHER_FORMATS)


def _in_place(node: Node) -> Iterator[Node]:
    """Yield the schemas inside a schema that apply to the same value."""
    if isinstance(node.schema, bool):
        return
    for keyword in (*_IN_PLACE_LISTS, *_IN_PLACE, *_IN_PLACE_MAPS):
        if node.has(keyword) and (keyword not in _IN_PLACE or "if" in node.schema):
            yield from (node.child(*path) for path in schemas_of(node, keyword))


def _last_of_all_of(node: Node) -> list[Node]:
    """Return the last MAX_SEARCHED schemas of allOf in their order."""
    parts = node.schema.get("allOf", ())
    places = (index for index in reversed(range(len(parts))) if not isinstance(parts[index], bool))
    return [node.child("allOf", index) for index in reversed(list(itertools.islice(places, MAX_SEARCHED)))]
