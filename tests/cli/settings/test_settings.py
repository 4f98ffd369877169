"""Settings: one declaration gives flag, environment name and help, and the default it shows is the one that holds."""

import argparse
from dataclasses import fields
from typing import Any

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.settings import settings
from chairlift.cli.settings.settings import ENGINE, GROUPS, SAMPLING, SERVER, ResolvedSetting, Setting, find, given
from chairlift.cli.settings.value_parsers import flag
from chairlift.core.sampling import SAMPLING_FIELDS, SamplingParams
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.llm.options import Options
from chairlift.model.runner.runner_config import RunnerConfig
from chairlift.server.config import ServerConfig
from chairlift.server.server_process import ListenAddress
from chairlift.web.admission import AdmissionLimits
from chairlift.web.tenant_limits import TenantLimits
from support_parsers import leaves

ALL = {setting.name: setting for setting in SAMPLING + ENGINE}


def parsed(*arguments: str, **environ: str) -> dict[str, Any]:
    """Parse options of `generate` with an environment."""
    found = build_parser().parse_args(["generate", *arguments])
    return given(SAMPLING + ENGINE, found, environ)


def test_every_sampling_parameter_and_every_engine_option_has_a_setting() -> None:
    assert sorted(setting.name for setting in SAMPLING) == sorted(SAMPLING_FIELDS)
    assert {setting.name for setting in ENGINE} == set(Options.__annotations__) - {"seed"}  # --seed is the request's


def test_the_defaults_that_help_shows_are_those_that_hold() -> None:
    real: dict[str, Any] = {"engine_mode": "inline"}
    for kind in (CacheConfig, SchedulerConfig, RunnerConfig, SamplingParams):
        real.update({spec.name: spec.default for spec in fields(kind)})
    shown = {name: setting.default for name, setting in ALL.items() if setting.default != "" and name != "max_tokens"}
    assert shown == {name: real[name] for name in shown}


def test_so_are_those_of_a_server() -> None:
    real: dict[str, Any] = {"insecure": False}
    for kind in (ServerConfig, AdmissionLimits, TenantLimits, ListenAddress):
        real.update({spec.name: spec.default for spec in fields(kind)})
    for setting in SERVER:
        default = setting.default
        if default != "":
            shown = setting.kind(default) if isinstance(default, str) else default
            assert shown == real[setting.name], setting.name
        else:
            assert real.get(setting.name) in (None, ()), setting.name  # nothing, or what words say


def test_whatever_is_true_or_false_says_which() -> None:
    flags = [setting for _, group in GROUPS for setting in group if setting.kind is flag]
    assert flags and all(isinstance(setting.default, bool) for setting in flags)


def test_every_setting_of_every_command_can_stand_in_a_file() -> None:
    known = {setting.dest for _, group in GROUPS for setting in group} | {settings.CONFIG.dest}
    for parser in leaves(build_parser()):
        assert {setting.dest for setting in parser.taken} <= known, parser.prog


@pytest.mark.parametrize(("setting", "shown"), [
    (Setting(name="a", help="h"), "h"), (Setting(name="a", help="h", default=5), "h (default 5)"),
    (Setting(name="a", help="h", default=0), "h (default 0)"), (Setting(name="a", help="h", default=False), "h"),
    (Setting(name="a", help="h", default=True), "h (default)"),
    (Setting(name="a", help="h", default_text="the model's"), "h (default: the model's)"),
])  # fmt: skip
def test_what_help_says_of_a_default(setting: Setting, shown: str) -> None:
    assert setting.shown_help == shown


def test_names_are_made_of_one_name() -> None:
    setting = Setting(name="max_batch_tokens", help="")
    assert (setting.flag, setting.environment) == ("--max-batch-tokens", "CHAIRLIFT_MAX_BATCH_TOKENS")
    assert (ALL["enable_prefix_caching"].flag, ALL["enable_prefix_caching"].environment) == (
        "--enable-prefix-caching", "CHAIRLIFT_ENABLE_PREFIX_CACHING",
    )  # fmt: skip
    assert len({setting.flag for setting in ALL.values()}) == len(ALL)


def test_what_nobody_set_is_absent() -> None:
    assert parsed() == {}
    assert parsed(CHAIRLIFT_TEMPERATURE="") == {}


def test_a_flag_wins_over_the_environment() -> None:
    environ = {"CHAIRLIFT_MAX_TOKENS": "5", "CHAIRLIFT_OVERLAP": "yes", "CHAIRLIFT_ENABLE_PREFIX_CACHING": "0"}
    assert parsed(**environ) == {"max_tokens": 5, "overlap": True, "enable_prefix_caching": False}
    flags = parsed("--max-tokens", "7", "--no-overlap", "--enable-prefix-caching", **environ)
    assert flags == {"max_tokens": 7, "overlap": False, "enable_prefix_caching": True}


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
def test_values_are_read_as_what_they_mean(arguments: list[str], value: dict[str, Any]) -> None:
    found = parsed(*arguments)
    assert found == value
    assert [type(each) for each in found.values()] == [type(each) for each in value.values()]


@pytest.mark.parametrize("text", ["", "x", "5=", "=5", "5,6"])
def test_a_bias_that_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        ALL["logit_bias"].kind(text)


def test_a_stop_of_the_environment_is_one_string() -> None:
    assert parsed(CHAIRLIFT_STOP="a,b") == {"stop": ["a,b"]}


class Says:
    """What a file says of one setting."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def read(self, setting: Setting) -> tuple[Any, str] | None:
        return (self.values[setting.dest], "f.yaml line 1") if setting.dest in self.values else None


def test_a_flag_wins_over_the_environment_that_over_the_file_and_that_over_nothing() -> None:
    port = next(setting for setting in SERVER if setting.name == "port")
    environ, file = {"CHAIRLIFT_PORT": "2"}, Says(port=3)
    assert find(port, argparse.Namespace(port=1, file=file), environ) == ResolvedSetting(1, "flag", "--port")
    assert find(port, argparse.Namespace(file=file), environ) == ResolvedSetting(2, "environment", "CHAIRLIFT_PORT")
    assert find(port, argparse.Namespace(file=file), {}) == ResolvedSetting(3, "file", "f.yaml line 1")
    assert find(port, argparse.Namespace(file=None), {"CHAIRLIFT_PORT": ""}) is None
    assert find(port, argparse.Namespace(port=0), environ) == ResolvedSetting(0, "flag", "--port")
    assert given([port], argparse.Namespace(file=file), {}) == {"port": 3}
