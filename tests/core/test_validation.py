"""Validation of single values: stored values are plain, errors name the field and its bound."""

from typing import Any

import pytest

from chairlift.core import validation
from chairlift.core.errors import InvalidRequest
from support_shares import for_each


@pytest.mark.parametrize(
    ("value", "expected"), [(1, "1"), (10**19, str(10**19)), (10**20, "a huge number"), (-(10**400), "a huge number")]
)
def test_a_number_in_a_sentence_fills_no_page(value: int, expected: str) -> None:
    assert validation.format_value(value) == expected


@pytest.mark.parametrize("value", [True, False])
def test_a_flag_is_kept(value: bool) -> None:
    assert validation.boolean("x", value) is value


@for_each(
    ("check", "expected"),
    [
        (lambda: validation.boolean("x", 1), "x must be true or false, got int"),
        (lambda: validation.strings("x", ["a", 5], 3, 3), "x must contain strings, got int"),
        (lambda: validation.strings("x", "abcd", 3, 3), "x must contain strings of 1 to 3 characters, got 4"),
        (lambda: validation.strings("x", ["a", "b"], 1, 3), "x has 2 entries, the limit is 1"),
        (lambda: validation.string("x", 5, 3), "x must be a string, got int"),
        (lambda: validation.string("x", "", 3), "x must be a string of 1 to 3 characters, got 0"),
        (lambda: validation.string("x", "abcd", 3), "x must be a string of 1 to 3 characters, got 4"),
        (lambda: validation.string("x", "\ud800", 3), "half of a surrogate pair"),
        (lambda: validation.token_ids("x", [1, 2, 3], 2, 9), "x has 3 entries, the limit is 2"),
        (lambda: validation.token_ids("x", [10], 2, 9), "x must be between 0 and 9, got 10"),
        (lambda: validation.as_tuple("x", {1}, 2, int), "x must be a list, got set"),
        (lambda: validation.integer("x", 1.0, 0, 2), "x must be an integer, got float"),
        (lambda: validation.number("x", 0, 0, 2, open_low=True), "x must be greater than 0 and at most 2, got 0"),
    ],
)
def test_a_refusal_names_the_field_and_the_bound(check: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected) as caught:
        check()
    assert caught.value.details == {"param": "x"}


def test_a_bare_entry_is_a_list_of_one_and_none_is_an_empty_list() -> None:
    assert validation.token_ids("x", 5, 2, 9) == (5,) and validation.token_ids("x", None, 2, 9) == ()
