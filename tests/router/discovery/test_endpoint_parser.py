"""endpoint_parser.py: fields as text, numbers and lists, and messages for those that are not valid."""

from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.discovery.endpoint_parser import check_names, parse_endpoint
from chairlift.router.endpoint import Endpoint, ReplicaKind
from support_shares import for_each


@pytest.mark.parametrize("fields", [
    {"weight": 2, "models": ["a", "b"], "kind": "openai", "version": 3, "zone": "z"},
    {"weight": "2", "models": "a, b,", "kind": ReplicaKind.OPENAI, "version": "3", "zone": "z", "instance": "ignored"},
])  # fmt: skip
def test_values_and_texts_give_the_same_endpoint(fields: dict[str, Any]) -> None:
    expected = Endpoint(url="http://h:1", weight=2.0, models=("a", "b"), kind=ReplicaKind.OPENAI, version="3", zone="z")
    assert parse_endpoint({"url": "H:1", **fields}) == expected


@for_each(("fields", "message"), [
    ({}, "a replica needs a url"), ({"url": 7}, "url must be text, got '7'"), ({"url": "ftp://h"}, "no URL"),
    ({"url": "h", "weight": "x"}, "weight must be a number, got 'x'"), ({"url": "h", "weight": True}, "got 'True'"),
    ({"url": "h", "weight": None}, "weight must be a number"), ({"url": "h", "weight": -1}, "must be between 0 and"),
    ({"url": "h", "models": 3}, "models must be a list of names, got '3'"),
    ({"url": "h", "models": [""]}, "models must"),
    ({"url": "h", "models": ["a"] * 1001}, "models has 1001 names, the limit is 1000"),
    ({"url": "h", "kind": "vllm"}, "kind must be one of auto, chairlift, openai, got 'vllm'"),
    ({"url": "h", "zone": ["z"]}, "zone must be text"), ({"url": "h", "zone": "a\nb"}, "printable"),
    ({"url": "h", "version": "x" * 513}, "at most 512"),
])  # fmt: skip
def test_fields_that_are_not_valid(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_endpoint(fields)


def test_unknown_names_have_a_hint() -> None:
    check_names(dict.fromkeys(("url", "weight", "models", "kind", "version", "zone")))
    with pytest.raises(ConfigError, match=r"no field 'wieght'; did you mean weight\?"):
        check_names({"wieght": 1})
    with pytest.raises(ConfigError, match="the fields are url, weight"):
        check_names({"zzz": 1})
