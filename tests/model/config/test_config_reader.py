"""Fields: typed reads with defaults."""

from typing import Any

import pytest

from chairlift.core.errors import ModelError
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.model.config.config_reader import ConfigReader
from support_shares import for_each


def fields(**content: Any) -> ConfigReader:
    return ConfigReader(content, {"window": 7, "silent": None})


def test_a_null_is_silence_but_not_for_a_reader_that_takes_none() -> None:
    assert fields(window=None).size("window") == 7
    assert fields(window=None).size_or_none("window") is None
    assert fields().size_or_none("window") == 7
    assert fields().size_or_none("silent") is None
    assert fields(window=None).raw("window") is None


def test_membership_counts_defaults_and_not_nulls() -> None:
    assert "window" in fields()
    assert "silent" not in fields()
    assert "other" not in fields(other=None)


@for_each("value", [0, -1, MAX_INT32 + 1, 1.0, "1", True, [1]])
def test_a_size_is_a_whole_number_of_at_least_one(value: Any) -> None:
    with pytest.raises(ModelError, match="n must be") as caught:
        fields(n=value).size("n")
    assert caught.value.details == {"field": "n"}
    assert fields(n=MAX_INT32).size("n") == MAX_INT32


@for_each("value", [0, -1.0, float("inf"), float("nan"), "1", True])
def test_a_number_is_finite_and_above_zero(value: Any) -> None:
    with pytest.raises(ModelError, match="n must be"):
        fields(n=value).number("n")
    assert fields(n=3).number("n") == 3.0


def test_other_readers_check_their_types() -> None:
    assert fields(n=0).count("n") == 0
    assert fields(n=False).flag("n") is False
    assert fields().flag_or("n", True) is True
    assert fields(n=["a"]).names("n") == ("a",)
    assert fields().names("n") is None
    assert fields().object("n") == {}
    assert fields(n="b").choice("n", ("a", "b")) == "b"
    for broken in (
        lambda: fields(n=1).flag("n"),
        lambda: fields(n=["a", 1]).names("n"),
        lambda: fields(n="a").names("n"),
        lambda: fields(n=[]).object("n"),
        lambda: fields(n=[]).choice("n", ("a",)),
        lambda: fields().choice("n", ("a",)),
        lambda: fields(n=["a"]).token_ids("n"),
        lambda: fields(n=[True]).token_ids("n"),
        lambda: fields(n=-2).token_ids("n"),
    ):
        with pytest.raises(ModelError, match="n "):
            broken()


def test_token_ids_keep_their_order_and_lose_their_doubles() -> None:
    assert fields(n=[3, 1, 3]).token_ids("n") == (3, 1)
    assert fields(n=0).token_ids("n") == (0,)
    assert fields(n=[1, None, -1, 2]).token_ids("n") == (1, 2)
    assert fields(n=[None]).token_ids("n") == fields(n=[]).token_ids("n") == fields(n=-1).token_ids("n") == ()
    assert fields().token_ids("n") == ()
