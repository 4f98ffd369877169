"""Kinds: text becomes what it means, or a sentence with what it must be and what came."""

import argparse
from pathlib import Path

import pytest

from chairlift.cli.settings import settings, value_parsers
from chairlift.cli.settings.value_parsers import Kind


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("50MB", 50_000_000), ("1.5KiB", 1536), ("0", 0)])
def test_a_size_is_bytes(text: str, number: int) -> None:
    assert value_parsers.size(text) == number and type(value_parsers.size(text)) is int


@pytest.mark.parametrize("text", ["much", "1TiB", "0.5", "nan", ""])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        value_parsers.size(text)


@pytest.mark.parametrize("text", ["much", "1TiB", "GiB", "infGiB"])
def test_a_memory_that_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="share like"):
        value_parsers.share_or_bytes(text)


@pytest.mark.parametrize(("kind", "text", "said"), [
    (value_parsers.whole, "1.5", "must be an integer, got '1.5'"),
    (value_parsers.number, "x", "must be a number, got 'x'"),
    (value_parsers.flag, "maybe", "must be one of 1, true, yes, on, 0, false, no, off, got 'maybe'"),
    (value_parsers.one_of("a", "b"), "c", "must be one of a, b, got 'c'"),
    (value_parsers.structure, "xml=a", "must be json_object or one of"),
    (value_parsers.structure, "regex=@nowhere", "cannot read nowhere"),
])  # fmt: skip
def test_what_is_none_is_a_sentence(kind: Kind, text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        kind(text)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("text", ["true", "YES", "on", "1"])
def test_yes_has_many_names(text: str) -> None:
    assert value_parsers.flag(text) is True


def test_structures_are_read_from_text_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "schema").write_text("{}", encoding="utf-8")
    assert value_parsers.structure(f"json_schema=@{tmp_path / 'schema'}") == {"json_schema": "{}"}
    assert value_parsers.structure("choice=a|b") == {"choice": ["a", "b"]}
    assert value_parsers.structure("json_object") == {"json_object": True}


def test_shares_and_factories_are_pairs() -> None:
    assert value_parsers.shares("gold=2,others") == {"gold": 2.0, "others": 1.0}
    assert value_parsers.factories("a=m:f,b=n:g") == {"a": "m:f", "b": "n:g"}


def test_every_kind_of_a_setting_is_said_in_words() -> None:
    for _, group in settings.GROUPS:
        for setting in group:
            assert setting.kind is str or value_parsers.said(setting.kind) != "text", setting.name
    assert value_parsers.said(value_parsers.one_of("a", "b")) == "one of a, b"
