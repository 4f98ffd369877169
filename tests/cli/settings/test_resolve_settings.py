"""resolve, resolve_group: the flag wins over the variable and the variable over the file; values are parsed."""

import argparse
from typing import Any

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.settings.resolve_settings import ResolvedSetting, resolve, resolve_group
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.settings import ENGINE, SAMPLING, SERVER

ALL = {setting.name: setting for setting in SAMPLING + ENGINE}


def resolve_generate(*arguments: str, **environ: str) -> dict[str, Any]:
    """Return the settings of a `generate` command line with an environment."""
    parsed = build_parser(["generate"]).parse_args(["generate", *arguments])
    return resolve_group(SAMPLING + ENGINE, parsed, environ)


class FakeFile:
    """Settings file with these values."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def read(self, setting: Setting) -> tuple[Any, str] | None:
        return (self.values[setting.dest], "f.yaml line 1") if setting.dest in self.values else None


def test_the_flag_wins_over_the_variable_and_the_variable_over_the_file() -> None:
    port = next(setting for setting in SERVER if setting.name == "port")
    environ, file = {"CHAIRLIFT_PORT": "2"}, FakeFile(port=3)
    assert resolve(port, argparse.Namespace(port=1, settings_file=file), environ) == ResolvedSetting(
        1, "flag", "--port"
    )
    assert resolve(port, argparse.Namespace(settings_file=file), environ) == ResolvedSetting(
        2, "environment", "CHAIRLIFT_PORT"
    )
    assert resolve(port, argparse.Namespace(settings_file=file), {}) == ResolvedSetting(3, "file", "f.yaml line 1")
    assert resolve(port, argparse.Namespace(settings_file=None), {"CHAIRLIFT_PORT": ""}) is None
    assert resolve(port, argparse.Namespace(port=0), environ) == ResolvedSetting(0, "flag", "--port")
    assert resolve_group([port], argparse.Namespace(settings_file=file), {}) == {"port": 3}


def test_a_setting_that_is_not_given_is_absent() -> None:
    assert resolve_generate() == {}
    assert resolve_generate(CHAIRLIFT_TEMPERATURE="") == {}


def test_a_flag_wins_over_the_environment() -> None:
    environ = {"CHAIRLIFT_MAX_TOKENS": "5", "CHAIRLIFT_OVERLAP": "yes", "CHAIRLIFT_ENABLE_PREFIX_CACHING": "0"}
    assert resolve_generate(**environ) == {"max_tokens": 5, "overlap": True, "enable_prefix_caching": False}
    flags = resolve_generate("--max-tokens", "7", "--no-overlap", "--enable-prefix-caching", **environ)
    assert flags == {"max_tokens": 7, "overlap": False, "enable_prefix_caching": True}


@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--stop", "a", "--stop", "b,c"], {"stop": ["a", "b,c"]}),
        (["--stop-token-ids", "1,2"], {"stop_token_ids": (1, 2)}),
        (["--logit-bias", "5=-1.5,6=2"], {"logit_bias": {5: -1.5, 6: 2.0}}),
        (["--seed", "-5"], {"seed": -5}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--include-stop-str-in-output"], {"include_stop_str_in_output": True}),
        (["--no-skip-special-tokens"], {"skip_special_tokens": False}),
        (["--max-memory", "0.5"], {"max_memory": 0.5}),
        (["--max-memory", "1"], {"max_memory": 1.0}),
        (["--max-memory", "4000000"], {"max_memory": 4_000_000}),
        (["--max-memory", "1.5GiB"], {"max_memory": 3 * 2**29}),
        (["--max-memory", "500mb"], {"max_memory": 500_000_000}),
    ],
)
def test_values_are_parsed(arguments: list[str], value: dict[str, Any]) -> None:
    result = resolve_generate(*arguments)
    assert result == value
    assert [type(each) for each in result.values()] == [type(each) for each in value.values()]


@pytest.mark.parametrize("text", ["", "x", "5=", "=5", "5,6"])
def test_a_bias_that_is_no_pair_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        ALL["logit_bias"].parse(text)


def test_a_stop_text_in_the_environment_is_one_string() -> None:
    assert resolve_generate(CHAIRLIFT_STOP="a,b") == {"stop": ["a,b"]}
