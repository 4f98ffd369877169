"""Setting: one declaration gives flag, variable, key and help line."""

import argparse

import pytest

from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.value_parsers import boolean, integer, token_ids
from support_shares import for_each


@for_each(("setting", "text"), [
    (Setting(name="a", help="h"), "h (default: none)"), (Setting(name="a", help="h", default=5), "h (default: 5)"),
    (Setting(name="a", help="h", default=0), "h (default: 0)"),
    (Setting(name="a", help="h", default=False), "h (default: false)"),
    (Setting(name="a", help="h", default=True), "h (default: true)"),
    (Setting(name="a", help="h", default_text="the model's"), "h (default: the model's)"),
    (Setting(name="a", help="h", is_repeatable=True), "h; may be given several times (default: none)"),
])  # fmt: skip
def test_the_help_line_ends_with_the_default(setting: Setting, text: str) -> None:
    assert setting.help_text == text


def test_flag_variable_and_key_are_one_word() -> None:
    setting = Setting(name="max_batch_tokens", help="")
    assert (setting.flag, setting.variable, setting.dest) == (
        "--max-batch-tokens", "CHAIRLIFT_MAX_BATCH_TOKENS", "max_batch_tokens",
    )  # fmt: skip
    setting = Setting(name="bad_words", flag_name="bad_word", help="")
    assert (setting.flag, setting.variable, setting.dest) == ("--bad-word", "CHAIRLIFT_BAD_WORD", "bad_word")
    setting = Setting(name="model", metavar="MODEL", is_positional=True, help="")
    assert (setting.flag, setting.variable, setting.dest) == ("MODEL", "CHAIRLIFT_MODEL", "model")


def test_a_flag_that_is_not_given_is_no_attribute() -> None:
    parser = argparse.ArgumentParser()
    for setting in (
        Setting(name="count", help="", parse=integer), Setting(name="on", help="", parse=boolean),
        Setting(name="ids", help="", parse=token_ids, is_repeatable=True),
        Setting(name="model", help="", is_positional=True),
    ):  # fmt: skip
        setting.add_to(parser)
    assert vars(parser.parse_args([])) == {"model": None}
    arguments = parser.parse_args(["m", "--count", "3", "--no-on", "--ids", "1,2", "--ids", "3"])
    assert vars(arguments) == {"model": "m", "count": 3, "on": False, "ids": [(1, 2), (3,)]}


def test_a_variable_is_parsed_and_named_in_its_error() -> None:
    assert Setting(name="ids", help="", parse=token_ids, is_repeatable=True).parse_variable("1,2") == [(1, 2)]
    with pytest.raises(argparse.ArgumentTypeError, match=r"^CHAIRLIFT_COUNT must be an integer, got 'x'$"):
        Setting(name="count", help="", parse=integer).parse_variable("x")
