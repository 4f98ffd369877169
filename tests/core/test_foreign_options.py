"""ForeignOption: each kind has what it needs, and shared reasons name settings as a table writes them."""

from enum import Enum

from chairlift.cli.settings import settings
from chairlift.core import foreign_options
from chairlift.core.foreign_options import OptionEffect, alias, in_flags, in_names, no_effect, refused
from chairlift.llm.options import Options
from support_shares import for_each

REASONS = {name: text for name, text in vars(foreign_options).items() if name.isupper()}


class Part(Enum):
    ENGINE = 1


def test_an_alias_has_a_setting() -> None:
    option = alias("block_size", "in tokens", part=Part.ENGINE, default=256)
    assert (option.effect, option.setting, option.reason) == (OptionEffect.ALIAS, "block_size", "in tokens")
    assert (option.part, option.default, option.neutral) == (Part.ENGINE, 256, ())
    assert alias().setting == "" and alias().part is None


def test_the_others_have_a_reason_and_neutral_values() -> None:
    option = no_effect("nothing is compiled", False, default=0)
    assert (option.effect, option.reason, option.neutral, option.default) == (
        OptionEffect.NONE, "nothing is compiled", (False,), 0,
    )  # fmt: skip
    assert no_effect().reason == ""
    option = refused("there is no beam search", 1, "auto")
    assert (option.effect, option.reason, option.neutral) == (
        OptionEffect.REFUSED,
        "there is no beam search",
        (1, "auto"),
    )


def test_a_setting_is_named_as_the_table_names_it() -> None:
    reason = "set {max_memory}, or {dtype}"
    assert in_names(reason) == "set max_memory, or dtype" and in_flags(reason) == "set --max-memory, or --dtype"


@for_each("name", REASONS)
def test_a_shared_reason_is_a_sentence_that_names_settings_of_both_faces(name: str) -> None:
    reason = REASONS[name]
    assert reason == reason.strip(" .") and len(in_flags(reason)) <= 110
    named = {word.strip("{},;") for word in reason.split() if word.startswith("{")}
    assert named <= set(Options.__annotations__) & {setting.name for setting in settings.ENGINE}
