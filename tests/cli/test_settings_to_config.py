"""config_of: options reach the fields of other names, and an error has the option's name."""

from dataclasses import dataclass

import pytest

from chairlift.cli.settings_to_config import config_of, renamed
from chairlift.core.errors import ConfigError


@dataclass
class Config:
    size_bytes: int = 5
    name: str = "a"

    def __post_init__(self) -> None:
        if self.size_bytes < 1:
            raise ConfigError(f"size_bytes must be at least 1, got {self.size_bytes}", option="size_bytes")
        if not self.name:
            raise ConfigError("a name is missing")


def test_options_that_are_given_reach_their_fields() -> None:
    assert config_of(Config, {"size": 7, "other": 1}, {"size": "size_bytes"}, name="b") == Config(7, "b")
    assert config_of(Config, {"size": None}, {"size": "size_bytes"}) == Config()
    assert renamed({"size": "", "x": 0}, {"size": "size_bytes", "x": "y"}) == {"y": 0}


def test_an_error_of_a_field_names_the_option_and_any_other_error_stays() -> None:
    with pytest.raises(ConfigError, match=r"^size must be at least 1, got 0$") as caught:
        config_of(Config, {"size": 0}, {"size": "size_bytes"})
    assert caught.value.details["option"] == "size"
    with pytest.raises(ConfigError, match=r"^a name is missing$"):
        config_of(Config, {"size": 1}, {"size": "size_bytes"}, name="")
