"""Number ranges whose excluded bound is an integer, which llguidance 1.9 allows in some cases."""

import math
from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.document import Node, Schema, definitions, subschemas

MAX_GAP = 1e-6
"""Most that a bound is moved: numbers closer than that to an excluded integer are lost."""

NODES_PER_COST = 4
"""Lowered schemas that are as much work as the lowering of one."""

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def exclude_integers(schema: Schema, budget: LoweringBudget) -> Schema:
    """Move the excluded integer bounds of a schema that has fractional bounds next to them.

    llguidance takes the integer 2 for a number above 2 and below 2.5: it compares the digits of the fraction only. The
    two bounds may come from different schemas of the document, which it combines. Raises ValueError if the result of
    the lowering is larger than the budget allows.
    """
    nodes, pending = list[Node](), [Node(schema, "", "")]
    while pending:
        node = pending.pop()
        if isinstance(node.schema, dict):
            if len(nodes) % NODES_PER_COST == 0:
                budget.spend(1, "")
            nodes.append(node)
            pending += (*subschemas(node), *definitions(node))
    bounds = [node.schema[name] for node in nodes for name in _BOUNDS if name in node.schema]
    fractions = sorted({bound for bound in bounds if bound != int(bound)})
    above = {math.floor(bound): bound for bound in reversed(fractions)}
    below = {math.ceil(bound): bound for bound in fractions}
    for node in nodes if fractions else ():
        _move(node.schema, "exclusiveMinimum", "minimum", 1, above)
        _move(node.schema, "exclusiveMaximum", "maximum", -1, below)
    return schema


def _move(schema: dict[str, Any], excluded: str, included: str, sign: int, nearest: dict[int, float]) -> None:
    """Replace an excluded integer bound by one that is included and lies `sign` times a small gap from it."""
    bound = schema.get(excluded)
    if bound is None or bound != int(bound) or int(bound) not in nearest:
        return
    moved = bound + sign * min(MAX_GAP, abs(nearest[int(bound)] - bound) / 2)
    del schema[excluded]
    schema[included] = max(moved, schema.get(included, moved), key=lambda value: sign * value)
