"""plain_json: data is copied to plain types; other data and deep nesting are refused by their place."""

from collections import UserDict
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.text.plain_json import MAX_DEPTH, plain_json


class Text(str):
    """A string with a method of its own."""


def test_data_is_copied_to_plain_types() -> None:
    data = UserDict({Text("a"): (Text("b"), 1, 2.5, True, None), "c": [{"d": {}}]})
    copied = plain_json(data, "x")
    assert copied == {"a": ["b", 1, 2.5, True, None], "c": [{"d": {}}]}
    assert type(copied) is dict and type(copied["a"][0]) is str and {type(key) for key in copied} == {str}


@pytest.mark.parametrize(
    ("data", "param", "words"),
    [
        ({"a": [1, object()]}, "x.a[1]", "must be JSON data, got object"),
        ({"a": {5: 1}}, "x.a", "has a key that is not a string"),
        ({"a": b"b"}, "x.a", "must be JSON data, got bytes"),
    ],
)
def test_other_data_is_refused_by_its_place(data: Any, param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        plain_json(data, "x")
    assert caught.value.details["param"] == param and caught.value.message.startswith(param)


def test_data_may_be_nested_up_to_the_limit() -> None:
    def nested(levels: int) -> Any:
        return [] if levels == 0 else [nested(levels - 1)]

    assert plain_json(nested(MAX_DEPTH), "x") == nested(MAX_DEPTH)
    with pytest.raises(InvalidRequest, match=f"is nested deeper than {MAX_DEPTH} levels"):
        plain_json(nested(MAX_DEPTH + 1), "x")
