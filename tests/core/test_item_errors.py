"""item_in_errors: which errors name an item of a list, and how."""

from typing import Any

import pytest

from chairlift.core.errors import ContextLengthExceeded, InvalidRequest
from chairlift.core.item_errors import item_in_errors


def raised(error: Exception, *arguments: Any) -> Any:
    with pytest.raises(type(error)) as caught, item_in_errors("prompts", *arguments):
        raise error
    return caught.value


def test_the_error_of_an_item_keeps_its_class_and_details_and_says_which_item_it_is() -> None:
    original = ContextLengthExceeded(512, None, 100)
    error = raised(original, 3, 10, ("prompt",))
    assert error.message == str(error) == f"prompts[3]: {original.message}"
    assert error.details == {**original.details, "index": 3} and error.__cause__ is original


@pytest.mark.parametrize(
    ("param", "count", "message"),
    [
        ("tools", 10, "prompts[3]: bad"), ("tools[0].name", 10, "prompts[3]: bad"),
        ("tools.name", 10, "prompts[3]: bad"), ("tools[0]", 1, "bad"), ("toolset", 10, "bad"), ("timeout", 10, "bad"),
    ],
)  # fmt: skip
def test_no_item_is_named_where_there_is_only_one_or_the_field_is_shared(param: str, count: int, message: str) -> None:
    error = raised(InvalidRequest("bad", param=param), 3, count, ("tools",))
    assert error.message == message and error.details["param"] == param


def test_an_error_without_a_field_is_of_its_item() -> None:
    assert raised(InvalidRequest("bad"), 0, 2, ("tools",)).message == "prompts[0]: bad"


def test_other_errors_pass() -> None:
    assert str(raised(ValueError("bad"), 0, 2, ())) == "bad"
