"""Kinds: text becomes what it means, or a sentence with what it must be and what came."""

import argparse
from pathlib import Path

import pytest

from chairlift.cli import kinds, settings
from chairlift.cli.kinds import Kind


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("50MB", 50_000_000), ("1.5KiB", 1536), ("0", 0)])
def test_a_size_is_bytes(text: str, number: int) -> None:
    assert kinds.size(text) == number and type(kinds.size(text)) is int


@pytest.mark.parametrize("text", ["much", "1TiB", "0.5", "nan", ""])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        kinds.size(text)


@pytest.mark.parametrize("text", ["much", "1TiB", "GiB", "infGiB"])
def test_a_memory_that_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="share like"):
        kinds.share_or_bytes(text)


@pytest.mark.parametrize(("kind", "text", "said"), [
    (kinds.whole, "1.5", "must be an integer, got '1.5'"), (kinds.number, "x", "must be a number, got 'x'"),
    (kinds.flag, "maybe", "must be one of 1, true, yes, on, 0, false, no, off, got 'maybe'"),
    (kinds.one_of("a", "b"), "c", "must be one of a, b, got 'c'"),
    (kinds.structure, "xml=a", "must be json_object or one of"),
    (kinds.structure, "regex=@nowhere", "cannot read nowhere"),
])  # fmt: skip
def test_what_is_none_is_a_sentence(kind: Kind, text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        kind(text)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("text", ["true", "YES", "on", "1"])
def test_yes_has_many_names(text: str) -> None:
    assert kinds.flag(text) is True


def test_structures_are_read_from_text_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "schema").write_text("{}", encoding="utf-8")
    assert kinds.structure(f"json_schema=@{tmp_path / 'schema'}") == {"json_schema": "{}"}
    assert kinds.structure("choice=a|b") == {"choice": ["a", "b"]}
    assert kinds.structure("json_object") == {"json_object": True}


def test_shares_and_factories_are_pairs() -> None:
    assert kinds.shares("gold=2,others") == {"gold": 2.0, "others": 1.0}
    assert kinds.factories("a=m:f,b=n:g") == {"a": "m:f", "b": "n:g"}


def test_every_kind_of_a_setting_is_said_in_words() -> None:
    for _, group in settings.GROUPS:
        for setting in group:
            assert setting.kind is str or kinds.said(setting.kind) != "text", setting.name
    assert kinds.said(kinds.one_of("a", "b")) == "one of a, b"
