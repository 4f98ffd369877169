"""describe_size: the error of a structured output that is too large names what is large in it."""

from typing import Any

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.largest_schema_part import describe_size
from support_shares import for_each


@for_each(
    ("structure", "text"),
    [
        ({"json_schema": {"properties": {f"p{number}": {} for number in range(40)}}}, "/properties with 40 entries"),
        ({"json_schema": {"items": {"anyOf": [{"const": number} for number in range(99)]}, "enum": [1] * 98}},
         "/items/anyOf with 99 entries"),
        ({"json_schema": {"properties": {"x" * 5000: {"enum": list(range(50))}}}}, f"/properties/{'x' * 88} with 50"),
        ({"json_schema": {"maxLength": 10**9}}, "it has 24 characters"), ({"json_schema": True}, "it has 4 characters"),
        ({"regex": "a{5}"}, "it has 4 characters"), ({"choice": ["aa", "bbb"]}, "it has 5 characters"),
    ],
)  # fmt: skip
def test_it_names_the_place_with_most_entries_or_the_length(structure: dict[str, Any], text: str) -> None:
    assert text in describe_size(StructuredOutput(**structure))
