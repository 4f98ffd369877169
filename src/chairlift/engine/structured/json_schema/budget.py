"""LoweringBudget: bounds the work that the lowering of all JSON Schemas of one request takes."""

from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError

MAX_SCHEMAS = 15_000
"""Most schemas in all documents of a request, eight values of an enum counted as one."""

MAX_COST = 10_000
"""Cost of lowering beyond twice the size of the documents, as rules lower some schemas several times; 1 takes 10 us."""

MAX_COMPARISONS = 10_000
"""Pairs of schemas that are compared to find disjoint ones; the others count as overlapping."""

MAX_CONTAINMENTS = 10_000
"""Pairs of schemas that are compared to find out whether one contains the other; from then on none does."""

STEPS_PER_COMPARISON = 8
"""Steps that are as much work as the comparison of a pair: a schema in it, a name or a value is looked up."""

MAX_REQUEST_ALTERNATIVES = 10_000
"""Most alternatives, weighted by their size, that all keywords of a request may become."""


class LoweringBudget:
    """The work that is left for one request: all tools and the response format share it.

    Attributes:
        remaining_comparisons: how many steps to find disjoint schemas are left.
        remaining_containments: how many steps to find out that one schema contains another one are left.
    """

    def __init__(self) -> None:
        self.remaining_comparisons = MAX_COMPARISONS * STEPS_PER_COMPARISON
        self.remaining_containments = MAX_CONTAINMENTS * STEPS_PER_COMPARISON
        self._remaining_schemas = MAX_SCHEMAS
        self._remaining_cost = MAX_COST
        self._remaining_alternatives = MAX_REQUEST_ALTERNATIVES

    def compare(self, pairs: int, steps: int = 0) -> bool:
        """Count the work to find disjoint schemas. Returns whether the budget allows it."""
        self.remaining_comparisons -= STEPS_PER_COMPARISON * pairs + steps
        return self.remaining_comparisons >= 0

    def contain(self, pairs: int, steps: int = 0) -> bool:
        """Count the work to find out that one schema contains another one. Returns whether the budget allows it."""
        self.remaining_containments -= STEPS_PER_COMPARISON * pairs + steps
        return self.remaining_containments >= 0

    def add_schemas(self, count: int, place: str) -> None:
        """Count schemas of a document, which also allows their lowering. Raises ValueError beyond MAX_SCHEMAS."""
        self._remaining_schemas -= count
        self._remaining_cost += 2 * count
        if self._remaining_schemas < 0:
            raise ValueError(
                f"{place or '/'} makes the schemas of the request too large: they have more than {MAX_SCHEMAS} parts"
            )

    def spend(self, cost: int, place: str) -> None:
        """Count work on a schema. Raises ValueError beyond the limit."""
        self._remaining_cost -= cost
        if self._remaining_cost < 0:
            raise ValueError(f"{place or '/'} makes the schema too large: its rewriting exceeds {MAX_COST} parts")

    def add_alternatives(self, count: int, place: str) -> None:
        """Count alternatives of a keyword. Raises UnsupportedSchemaError beyond the limit, from then on always."""
        if self._remaining_alternatives <= count:
            self._remaining_alternatives = 0
            raise UnsupportedSchemaError(
                place, f"needs too many alternatives: the limit of a request is {MAX_REQUEST_ALTERNATIVES}"
            )
        self._remaining_alternatives -= count
