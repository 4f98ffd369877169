"""Lowering of keywords of arrays: items, contains and uniqueItems."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chairlift.engine.structured.json_schema.all_of_and_any_of import MAX_ALTERNATIVES, MAX_WAYS_TO_FAIL, any_of
from chairlift.engine.structured.json_schema.document import TYPES, VALUES_PER_COST, Node, Schema, type_names
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.value_keys import num_chars_of
from chairlift.engine.structured.json_schema.value_sets import finite_values

if TYPE_CHECKING:
    from chairlift.engine.structured.json_schema.lowering import Lowering

MAX_POSITIONS = 8
"""Items that `contains` requires are among the first ones, at most this many."""

MAX_SEQUENCES = 350
"""Most arrays that uniqueItems may be rewritten to, each of them written out; five values have 326."""

SEQUENCES_COST = 10
"""Cost of listing the arrays of one uniqueItems until there are too many."""

MAX_ORDERED_SEQUENCES = 128
"""Most such arrays if their items are in the order of the schema, which seven values have; eight compile for 0.5 s."""

CHARS_PER_ALTERNATIVE = 1024
"""Characters of the values of uniqueItems with which each of its arrays counts as one more alternative."""

ALTERNATIVE_COST = 4
"""Cost of one alternative of `contains`, which has up to MAX_POSITIONS schemas."""

NOT_ARRAY: Schema = {"type": [name for name in TYPES if name != "array"]}


def prefix_of(node: Node) -> list[Node]:
    """Return the schemas of the first items, each of its own."""
    return [node.child(_prefix_keyword(node), index) for index in range(num_prefix_items(node))]


def num_prefix_items(node: Node) -> int:
    """Return how many items at the start have a schema of their own."""
    return len(node.schema.get(_prefix_keyword(node), ()))


def item_of(node: Node, index: int) -> Node:
    """Return the schema of the item at an index."""
    return node.child(_prefix_keyword(node), index) if index < num_prefix_items(node) else rest_of(node)


def _prefix_keyword(node: Node) -> str:
    return "items" if isinstance(node.schema.get("items"), list) else "prefixItems"  # JSON Schema 7


def rest_of(node: Node) -> Node:
    """Return the schema of the items behind the prefix."""
    keyword = "additionalItems" if isinstance(node.schema.get("items"), list) else "items"
    return node.child(keyword) if keyword in node.schema else Node(True, node.pointer, node.base)


def longest(node: Node) -> float:
    """Return the most items that an array may have; infinity without a limit."""
    limit: float = node.schema.get("maxItems", math.inf)
    return min(limit, num_prefix_items(node)) if rest_of(node).schema is False else limit


def may_be_array(node: Node) -> bool:
    """Return whether the schema's `type` allows arrays."""
    return "array" in type_names(node.schema)


def for_arrays(node: Node, alternatives: list[Schema]) -> list[Schema]:
    """Return alternatives for arrays as a conjunct, which leaves other types as they are."""
    others = [NOT_ARRAY] if set(type_names(node.schema)) != {"array"} else []
    return [any_of([*others, *alternatives])]


def _items(lowering: "Lowering", node: Node) -> list[Schema]:
    if "prefixItems" in node.schema and "items" in node.schema and not isinstance(node.schema["items"], list):
        return []  # prefixItems takes both
    return _prefix_items(lowering, node)


def _prefix_items(lowering: "Lowering", node: Node) -> list[Schema]:
    part: dict[str, Schema] = {}
    if prefix := [lowering.positive(each) for each in prefix_of(node)]:
        part["prefixItems"] = prefix
    if (rest := lowering.positive(rest_of(node))) is not True:
        part["items"] = rest
    return [part]


# -- contains ----------------------------------------------------------------------------------------------------------


def contains_bounds(node: Node) -> tuple[int, float]:
    """Return how many items must and may match `contains`."""
    return int(node.schema.get("minContains", 1)), node.schema.get("maxContains", math.inf)


def _contains(lowering: "Lowering", node: Node) -> list[Schema]:
    low, high = contains_bounds(node)
    if not may_be_array(node) or (low == 0 and high == math.inf):
        return []
    return for_arrays(node, contains_alternatives(lowering, node, low, high))


def contains_alternatives(lowering: "Lowering", node: Node, low: int, high: float) -> list[Schema]:
    """Return arrays in which `low` to `high` items match `contains`, all of them among the first MAX_POSITIONS."""
    part = node.child("contains")
    if high < low:
        return []
    if low > MAX_ALTERNATIVES:
        raise UnsupportedSchemaError(node.at("minContains"), f"is {low}, the limit is {MAX_ALTERNATIVES}")
    matching = lowering.define(lowering.strictly(part)) if high else False
    # Without an upper bound the other items may match, too, so no complement is needed.
    other: Schema = True if high == math.inf else lowering.define(lowering.negative(part))
    alternatives: list[Schema] = []
    lowering.document.budget.add_alternatives(0, node.at("contains"))
    choices = _choices(low, high, int(min(longest(node), max(low, MAX_POSITIONS))))
    lowering.document.budget.add_alternatives(ALTERNATIVE_COST * len(choices), node.at("contains"))
    for positions in choices:
        length = positions[-1] + 1 if positions else 0
        schema: dict[str, Any] = {"type": "array", "items": other, "minItems": length}
        if length:
            schema["prefixItems"] = [matching if index in positions else other for index in range(length)]
        alternatives.append({name: value for name, value in schema.items() if name != "items" or value is not True})
    return alternatives


def _choices(low: int, high: float, num_positions: int) -> list[tuple[int, ...]]:
    """Return sets of positions, `low` to `high` of them where the number of sets allows it."""
    counts = range(low, int(min(high, num_positions)) + 1) if high != math.inf else range(low, low + 1)
    # Fewer positions lose some arrays; those that are left still match.
    while num_positions > low and sum(math.comb(num_positions, count) for count in counts) > MAX_ALTERNATIVES:
        num_positions -= 1
        counts = range(low, int(min(counts.stop - 1, num_positions)) + 1)
    return [each for count in counts for each in itertools.combinations(range(num_positions), count)]


# -- uniqueItems -------------------------------------------------------------------------------------------------------


def _unique_items(lowering: "Lowering", node: Node) -> list[Schema]:
    if not node.schema["uniqueItems"] or longest(node) <= 1 or not may_be_array(node):
        return []
    sets = _values_by_position(lowering, node)
    if sets is None:
        raise UnsupportedSchemaError(node.at("uniqueItems"), "needs items from a finite set, such as an enum")
    low, budget = int(node.schema.get("minItems", 0)), lowering.document.budget
    budget.add_alternatives(SEQUENCES_COST, node.at("uniqueItems"))
    sequences = _sequences(sets, low, is_ordered=False)
    if sequences is None and all(values is sets[0] for values in sets):
        sequences = _sequences(sets, low, is_ordered=True)
    num_chars = sum(num_chars_of(key) for key in (sets[0] if sets else ()))
    budget.add_alternatives(len(sequences or ()) * (1 + num_chars // CHARS_PER_ALTERNATIVE), node.at("uniqueItems"))
    if sequences is None:
        raise UnsupportedSchemaError(node.at("uniqueItems"), f"allows more than {MAX_SEQUENCES} arrays, the limit")
    return for_arrays(node, [{"enum": sequences}] if sequences else [])


def _values_by_position(lowering: "Lowering", node: Node) -> list[dict[str, Any]] | None:
    """Return the values by their keys that each item may have, as far as an array without repetition may be long."""
    most = longest(node)
    prefix = [finite_values(lowering.document, each) for each in prefix_of(node)]
    rest = finite_values(lowering.document, rest_of(node)) if most > len(prefix) else {}
    if None in prefix or rest is None:
        return None
    sets = [values for values in prefix if values is not None]
    return sets[: int(min(most, len(sets)))] + [rest] * int(min(most - len(sets), len(rest)))


def _sequences(sets: Sequence[Mapping[str, Any]], low: int, *, is_ordered: bool) -> list[list[Any]] | None:
    """Return the arrays without repetition, of ordered values only those in their order; None if there are too many."""
    limit = MAX_ORDERED_SEQUENCES if is_ordered else MAX_SEQUENCES
    level: list[tuple[list[Any], tuple[str, ...]]] = [([], ())]
    found: list[list[Any]] = [[]] if low == 0 else []
    for values in sets:
        order = {key: index for index, key in enumerate(values)}
        longer = []
        for items, keys in level:
            first = order[keys[-1]] + 1 if is_ordered and keys else 0
            for key, value in itertools.islice(values.items(), first, None):
                if key not in keys:
                    longer.append(([*items, value], (*keys, key)))
            if len(longer) > limit:
                return None
        level = longer
        if level and len(level[0][0]) >= low:
            found += [items for items, _ in level]
        if len(found) > limit:
            return None
    return found


RULES: dict[str, Callable[["Lowering", Node], list[Schema]]] = {
    "prefixItems": _prefix_items, "items": _items, "contains": _contains, "uniqueItems": _unique_items,
}  # fmt: skip


def negative_items(lowering: "Lowering", node: Node) -> list[Schema]:
    """Return arrays of which an item does not match its schema; behind the prefix only the first MAX_POSITIONS."""
    rest = rest_of(node)
    parts = [lowering.negative(item_of(node, index)) for index in range(num_prefix_items(node))]
    if rest.schema is False:
        return [*_with_item(lowering, node, parts), {"type": "array", "minItems": len(parts) + 1}]
    behind = lowering.negative(rest)
    parts += [lowering.define(behind) if behind is not False else False] * MAX_POSITIONS
    return _with_item(lowering, node, parts)


def _with_item(lowering: "Lowering", node: Node, parts: list[Schema]) -> list[Schema]:
    kept = [(index, part) for index, part in enumerate(parts) if part is not False]
    # Each alternative lists all items before its own.
    lowering.document.budget.spend(sum(index for index, _ in kept[:MAX_WAYS_TO_FAIL]) // VALUES_PER_COST, node.pointer)
    return [
        {"type": "array", "minItems": index + 1, "prefixItems": [*[True] * index, part]}
        for index, part in kept[: MAX_WAYS_TO_FAIL + 1]
    ]


def negative_contains(lowering: "Lowering", node: Node) -> list[Schema]:
    """Return arrays in which too few or too many items match `contains`."""
    low, high = contains_bounds(node)
    too_few = contains_alternatives(lowering, node, 0, low - 1) if low else []
    return too_few + (contains_alternatives(lowering, node, int(high) + 1, math.inf) if high != math.inf else [])
