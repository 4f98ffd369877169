"""RenamedValues, share_of_memory, context_size, thread_count, json_list: values are converted or rejected."""

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from chairlift.cli.settings.foreign_value_parsers import (
    EntryOfObject,
    RenamedValues,
    context_size,
    describe_value,
    json_list,
    share_of_memory,
    thread_count,
)
from chairlift.cli.settings.value_parsers import integer
from support_shares import for_each


@for_each(
    ("parse", "text", "value"),
    [
        (share_of_memory, "0.9", 0.9),
        (share_of_memory, "1", 1.0),
        (context_size, "4096", 4096),
        (context_size, "0", None),
        (thread_count, "-1", None),
        (thread_count, "3", 3),
        (json_list, '["*"]', ["*"]),
        (json_list, "https://a.b", ["https://a.b"]),
        (RenamedValues((("fcfs", "fifo"),)), "fcfs", "fifo"),
        (EntryOfObject("size", integer), "3", {"size": 3}),
    ],
)
def test_a_value_is_converted(parse: Callable[[str], Any], text: str, value: object) -> None:
    result = parse(text)
    assert result == value and type(result) is type(value)


@for_each(
    ("parse", "text", "message"),
    [
        (share_of_memory, "90", "must be a fraction above 0 and up to 1, got '90'"),
        (share_of_memory, "0", "must be a fraction"),
        (share_of_memory, "nan", "must be a fraction"),
        (EntryOfObject("size", integer), "x", "must be an integer, got 'x'"),
        (context_size, "x", "must be an integer, got 'x'"),
        (json_list, "[1]", "must be a JSON list of texts"),
        (json_list, "[", "must be a JSON list of texts"),
        (RenamedValues((("fcfs", "fifo"), ("lpm", "cache_aware"))), "best", "must be one of fcfs, lpm, got 'best'"),
    ],
)
def test_another_value_is_rejected(parse: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


def test_the_value_of_a_key_is_described_with_the_key() -> None:
    assert describe_value(EntryOfObject("size", integer)) == "the key `size`: an integer"
    assert describe_value(EntryOfObject("kind", RenamedValues((("A", "a"),)))) == "the key `kind`: `A` is `a`"
