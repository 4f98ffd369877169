"""PairResults: what comparisons of two JSON Schemas of one document found, so that none is made twice."""

from chairlift.engine.structured.json_schema.document import Node

_Place = tuple[str, frozenset[str] | None, bool]


class PairResults:
    """Whether something certainly holds for two schemas, by their places and the types of their values.

    A comparison that began at a greater depth may have ended without finding out that it holds: such a result is used
    at that depth and below it only.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[_Place, _Place], tuple[bool, int]] = {}

    def get(self, one: Node, other: Node, depth: int) -> bool | None:
        """Return the result for two schemas, None if there is none that can be used at this depth."""
        holds, least = self._found.get((_place(one), _place(other)), (None, 0))
        return holds if holds or depth >= least else None

    def add(self, one: Node, other: Node, depth: int, *, holds: bool) -> bool:
        """Keep a result and return it."""
        self._found[_place(one), _place(other)] = holds, depth
        return holds


def _place(node: Node) -> _Place:
    return node.pointer, node.value_types, node.schema is True
