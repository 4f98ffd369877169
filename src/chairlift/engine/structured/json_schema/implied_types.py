"""ImpliedTypes: the types that a JSON Schema without `type` means, by the keywords that it has.

JSON Schema lets {"properties": ...} match a number, because `properties` limits objects only. No author of a schema
means that number, so outputs have the types that the keywords are about.
"""

from chairlift.engine.structured.json_schema.document import APPLIES_TO, TYPES, Node, SchemaDocument
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.patterns import KNOWN_FORMATS, OTHER_FORMATS

_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("then", "else")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_TYPE_KEYWORDS = frozenset({"type", "enum", "const", "$dynamicRef", "$recursiveRef"})
"""Keywords that say which types a value may have; where a dynamic reference goes is not known here."""

MAX_SEARCHED = 256
"""Most schemas of the same value that are searched for a type; beyond them one of them is taken to say it."""

SEARCHED_PER_COST = 8
"""Searched schemas that are as much work as the lowering of one."""


class ImpliedTypes:
    """The implied types of the schemas of one document.

    A schema has some only if neither it, nor a schema that applies to the same value, says which types it allows. They
    are those that its own keywords and those of its `allOf` limit.
    """

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._types: dict[str, list[str]] = {}
        self._limited: set[str] = set()

    def add_to(self, node: Node) -> Node:
        """Return a schema with its implied types as its `type`, itself if it has none.

        A schema comes before those inside it, whose types it may limit. Raises ValueError for a malformed reference.
        """
        if node.pointer not in self._types:
            self._types[node.pointer] = self._find(node)
        implied = self._types[node.pointer]
        if not implied:
            return node
        kinds = implied[0] if len(implied) == 1 else implied
        return Node({"type": kinds, **node.schema}, node.pointer, node.base)

    def _find(self, node: Node) -> list[str]:
        is_limited, kinds = node.pointer in self._limited, self._kinds(node)
        inside, conjuncts = _in_place(node), _in_place(node, ("allOf",))
        mentions_type = bool(kinds) and not is_limited and self._mentions_type(node)
        if is_limited or mentions_type:
            kinds = []
        if inside and (is_limited or kinds or any(map(self._states_type, (node, *conjuncts)))):
            self._limited |= {each.pointer for each in inside}
        elif mentions_type:  # in an alternative, which the other conjuncts must not exclude
            self._limited |= {each.pointer for each in conjuncts}
        return kinds

    def _kinds(self, node: Node) -> list[str]:
        """Return the types that the keywords of a schema and its allOf limit, in the order of TYPES."""
        found, pending = set[str](), [node]
        while pending:
            each = pending.pop()
            if isinstance(each.schema, dict):
                found |= {APPLIES_TO[name] for name in each.schema if name in APPLIES_TO and _is_about(name, each)}
                pending += _in_place(each, ("allOf",))
        return [name for name in TYPES if name in found]

    def _mentions_type(self, node: Node) -> bool:
        """Return whether a schema or one that applies to the same value says a type, in some of its alternatives."""
        pending, visited, is_found = [node], set[str](), False
        while pending and not is_found:
            each = pending.pop()
            if each.pointer in visited:
                continue
            visited.add(each.pointer)
            is_found = _says_type(each) or len(visited) > MAX_SEARCHED
            pending += (*_in_place(each), *self._target(each))
        self._document.budget.spend(len(visited) // SEARCHED_PER_COST, node.pointer)
        return is_found

    def _states_type(self, node: Node) -> bool:
        """Return whether a schema itself or what it refers to says a type."""
        return _says_type(node) or any(map(self._mentions_type, self._target(node)))

    def _target(self, node: Node) -> list[Node]:
        """Return what a schema refers to, if it does so within the document."""
        if isinstance(node.schema, bool) or "$ref" not in node.schema:
            return []
        try:
            return [self._document.resolve(node, "$ref")]
        except UnsupportedSchemaError:  # another document
            return []


def _says_type(node: Node) -> bool:
    if isinstance(node.schema, bool):
        return False
    return bool(node.schema.keys() & _TYPE_KEYWORDS)


def _is_about(keyword: str, node: Node) -> bool:
    """Return whether a keyword says that a value has its type; a format may also be one of numbers."""
    return keyword != "format" or node.schema["format"] in (*KNOWN_FORMATS, *OTHER_FORMATS)


def _in_place(node: Node, keywords: tuple[str, ...] = (*_IN_PLACE_LISTS, *_IN_PLACE, *_IN_PLACE_MAPS)) -> list[Node]:
    """Return the schemas of these keywords, which apply to the same value."""
    if isinstance(node.schema, bool):
        return []
    found: list[Node] = []
    for keyword in keywords:
        value = node.schema[keyword] if node.has(keyword) else None
        if keyword in _IN_PLACE_LISTS and value is not None:
            found += [node.child(keyword, index) for index in range(len(value))]
        elif keyword in _IN_PLACE_MAPS and value is not None:
            found += [node.child(keyword, name) for name, part in value.items() if not isinstance(part, list)]
        elif value is not None and "if" in node.schema:
            found.append(node.child(keyword))
    return found
