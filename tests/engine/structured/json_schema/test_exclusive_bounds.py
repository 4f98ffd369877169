"""Number ranges: an excluded integer stays excluded beside a fractional bound."""

from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.exclusive_bounds import exclude_integers
from support_json_schema import check
from support_shares import for_each


@for_each(
    ("schema", "matching", "failing"),
    [
        ({"type": "number", "exclusiveMinimum": 2, "exclusiveMaximum": 2.5}, [2.1, 2.4], [2, 2.5, 1]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, [0.001, 0.5], [0, 1]),
        ({"type": "number", "exclusiveMaximum": -1, "minimum": -1.25}, [-1.25, -1.1], [-1, -2]),
        ({"type": "number", "allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.25}]}, [0.1], [0, 0.3]),
        ({"type": "number", "not": {"enum": [2, 2.5]}}, [2.2, 3, 1], [2, 2.5]),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": 2, "exclusiveMaximum": 2.5}, [2.25], [2, 1]),
    ],
)  # fmt: skip
def test_excluded_integers(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    check(schema, matching, failing)


def test_bounds_are_moved_only_next_to_a_fraction() -> None:
    plain = {"type": "number", "exclusiveMinimum": 0, "maximum": 3.5}
    assert exclude_integers(dict(plain), LoweringBudget()) == plain
    assert exclude_integers({"exclusiveMinimum": 3, "maximum": 3.5}, LoweringBudget()) == {
        "minimum": 3.000001,
        "maximum": 3.5,
    }
    assert exclude_integers({"enum": [{"exclusiveMinimum": 3}, 3.5]}, LoweringBudget()) == {
        "enum": [{"exclusiveMinimum": 3}, 3.5]
    }
