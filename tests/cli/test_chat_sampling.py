"""ChatSampling: /set changes one setting or none, and says what it was; values on the command line are checked."""

import pytest

from chairlift.cli.chat_sampling import SETTINGS, ChatSampling
from chairlift.core.errors import ConfigError, InvalidRequest
from support_shares import for_each


@for_each(("text", "values"), [
    ("temperature 0.5", {"seed": 3, "temperature": 0.5}), ("top-p=0.9", {"seed": 3, "top_p": 0.9}),
    ("parameter Top_K 4", {"seed": 3, "top_k": 4}), ("stop  a b", {"seed": 3, "stop": ["a b"]}), ("seed", {}),
    ("stop a=b", {"seed": 3, "stop": ["a=b"]}), ("temperature = 0.5", {"seed": 3, "temperature": 0.5}),
    ("stop =b", {"seed": 3, "stop": ["=b"]}),
])  # fmt: skip
def test_a_setting_is_set_or_reset(text: str, values: dict[str, object]) -> None:
    sampling = ChatSampling({"seed": 3})
    assert sampling.set(text).startswith(f"{text.removeprefix('parameter ').split()[0].split('=')[0].lower()[:3]}")
    assert sampling.values == values


@for_each(("text", "sentence"), [
    ("temp 1", "unknown setting 'temp'; did you mean temperature?"), ("xyz 1", "unknown setting 'xyz'; available are"),
    ("= 5", "unknown setting ''; available are"), ("temperature 1e999", "temperature must be between 0 and 2, got inf"),
    ("temperature nan", "temperature must be between 0 and 2, got nan"),
    ("\u6e29 1", "unknown setting '\u6e29'; available"),
    ("top_k many", "top_k must be an integer, got 'many'; it is from -1 to 2147483647"),
    ("top_p 2", "top_p must be between 0 and 1, got 2.0"), ("max_tokens 0", "max_tokens must be between 1 and "),
])  # fmt: skip
def test_a_bad_value_changes_nothing(text: str, sentence: str) -> None:
    sampling = ChatSampling({"seed": 3})
    with pytest.raises((ConfigError, InvalidRequest)) as caught:
        sampling.set(text)
    assert caught.value.message.startswith(sentence) and sampling.values == {"seed": 3}


def test_the_list_has_every_setting_with_its_value_or_default() -> None:
    lines = list(ChatSampling({"seed": 3, "stop": ["é"]}).lines())
    assert [line.split()[0] for line in lines] == list(SETTINGS)
    assert "  seed                 3" in lines and '  stop                 ["é"]' in lines
    assert "  temperature          the default (the model's, else 1)" in lines


def test_values_of_the_command_line_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="temperature must be between 0 and 2"):
        ChatSampling({"temperature": 3.0})
