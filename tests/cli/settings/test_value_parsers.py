"""Value parsers: text becomes a value, or an error with the expected form and the text."""

import argparse
from pathlib import Path

import pytest

from chairlift.cli.settings import settings, value_parsers
from chairlift.cli.settings.value_parsers import ValueParser
from support_shares import for_each


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("50MB", 50_000_000), ("1.5KiB", 1536), ("0", 0)])
def test_a_size_is_bytes(text: str, number: int) -> None:
    assert value_parsers.num_bytes(text) == number and type(value_parsers.num_bytes(text)) is int


@pytest.mark.parametrize("text", ["much", "1TiB", "0.5", "nan", ""])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a size in bytes such as 50MB, got"):
        value_parsers.num_bytes(text)


@for_each(("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), ("0", 0)])
def test_a_time_is_seconds(text: str, seconds: int) -> None:
    assert value_parsers.duration(text) == seconds


@for_each("text", ["", "h", "1.5h", "-1", "1w", "1 h", "1H", "1h30m", "9" * 10, "²"])
def test_an_invalid_time_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a time such as 90s, 15m, 12h or 30d, got"):
        value_parsers.duration(text)


@pytest.mark.parametrize("text", ["much", "1TiB", "GiB", "infGiB"])
def test_an_invalid_fraction_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"a fraction such as 0\.8 or a size such as 4GiB"):
        value_parsers.fraction_or_bytes(text)


@for_each(("text", "number"), [
    ("8192", 8192), ("8k", 8000), ("8K", 8192), ("25.6k", 25_600), ("1.5K", 1536), ("2m", 2_000_000), ("1G", 1 << 30),
    ("0", 0), ("-1", -1),
])  # fmt: skip
def test_a_number_of_tokens_may_have_a_unit(text: str, number: int) -> None:
    assert value_parsers.num_tokens(text) == number and type(value_parsers.num_tokens(text)) is int


@for_each("text", ["", "k", "8KB", "1.5", "8 k", "1e3", "0x9", "8T"])
def test_another_number_of_tokens_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number of tokens such as 8192, 8k or 8K, got"):
        value_parsers.num_tokens(text)


@for_each(("text", "value"), [
    ("auto", "auto"), ("AUTO", "auto"), (" auto ", "auto"), ("-1", "auto"), ("8192", 8192), ("16k", 16_000),
    ("16K", 16_384),
])  # fmt: skip
def test_a_length_may_be_auto(text: str, value: int | str) -> None:
    assert value_parsers.num_tokens_or_auto(text) == value


def test_a_length_that_is_neither_a_number_nor_auto_is_rejected() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number of tokens such as 8192, 8k or 8K, or auto"):
        value_parsers.num_tokens_or_auto("automatic")


def test_the_scheduling_policy_of_vllm_has_our_name() -> None:
    assert [value_parsers.scheduling_policy(name) for name in ("fcfs", "fifo", "fair")] == ["fifo", "fifo", "fair"]


@for_each(("parse", "text", "message"), [
    (value_parsers.integer, "1.5", "must be an integer, got '1.5'"),
    (value_parsers.number, "x", "must be a number, got 'x'"),
    (value_parsers.boolean, "maybe", "must be one of 1, true, yes, on, 0, false, no, off, got 'maybe'"),
    (value_parsers.one_of("a", "b"), "c", "must be one of a, b, got 'c'"),
    (value_parsers.json_object, "{'a': 1}", "must be a JSON object: Expecting property name"),
    (value_parsers.json_object, "[1]", "must be a JSON object, got '[1]'"),
    (value_parsers.structured_output, "xml=a", "must be json_object or one of json_schema=TEXT, regex=TEXT,"),
    (value_parsers.slo_limits, "ttft=1,tpot",
     "must be pairs of name and seconds such as ttft=0.5,tpot=0.05, got 'tpot'"),
    (value_parsers.named_shares, "a,b=x", "must be pairs of name and share such as gold=2,silver=1, got 'b=x'"),
    (value_parsers.token_ids, "1,x", "must be token ids such as 1,2, got '1,x'"),
    (value_parsers.token_biases, "5", "must be pairs of token id and bias such as 5=-1,6=2.5, got '5'"),
    (value_parsers.structured_output, "regex=@nowhere", "names a file that cannot be read: nowhere: No such file"),
])  # fmt: skip
def test_an_invalid_value_is_a_sentence(parse: ValueParser, text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["true", "YES", "on", "1"])
def test_true_has_several_words(text: str) -> None:
    assert value_parsers.boolean(text) is True


def test_a_json_object_keeps_its_types() -> None:
    text = '{"enable_thinking": false, "effort": "low", "n": [1, null]}'
    assert value_parsers.json_object(text) == {"enable_thinking": False, "effort": "low", "n": [1, None]}


def test_structured_output_is_parsed_from_text_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "schema").write_text("{}", encoding="utf-8")
    assert value_parsers.structured_output(f"json_schema=@{tmp_path / 'schema'}") == {"json_schema": "{}"}
    assert value_parsers.structured_output("choice=a|b") == {"choice": ["a", "b"]}
    assert value_parsers.structured_output("json_object") == {"json_object": True}


def test_shares_and_factories_are_pairs() -> None:
    assert value_parsers.named_shares("gold=2,others") == {"gold": 2.0, "others": 1.0}
    assert value_parsers.named_factories("a=m:f,b=n:g") == {"a": "m:f", "b": "n:g"}


def test_every_parser_of_a_setting_has_a_description() -> None:
    for _, group in settings.GROUPS:
        for setting in group:
            assert setting.parse is str or value_parsers.describe_parser(setting.parse) != "text", setting.name
    assert value_parsers.describe_parser(value_parsers.one_of("a", "b")) == "one of a, b"
