"""Settings: complete tables, real defaults, and the order of flag, variable and file."""

import argparse
from dataclasses import fields
from typing import Any

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.registration_options import DEFAULT_WEIGHT
from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import resolve_group
from chairlift.cli.settings.service_settings import TRACING
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.settings import ENGINE, GROUPS, SAMPLING, SERVER
from chairlift.cli.settings.value_parsers import boolean
from chairlift.core.sampling_params import SAMPLING_FIELDS, SamplingParams
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.llm.options import Options
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.server.config import ServerConfig
from chairlift.server.server_process import ListenAddress
from chairlift.text.reasoning_formats import AUTO
from chairlift.web.admission import AdmissionLimits
from chairlift.web.auth.jwt_verifier import JWTConfig
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.tenant_limits import TenantLimits
from support_parsers import leaf_parsers

ALL = {setting.name: setting for setting in SAMPLING + ENGINE}


def resolve_generate(*arguments: str, **environ: str) -> dict[str, Any]:
    """Return the settings of a `generate` command line with an environment."""
    parsed = build_parser().parse_args(["generate", *arguments])
    return resolve_group(SAMPLING + ENGINE, parsed, environ)


def test_every_sampling_parameter_and_every_engine_option_has_a_setting() -> None:
    assert sorted(setting.name for setting in SAMPLING) == sorted(SAMPLING_FIELDS)
    assert {setting.name for setting in ENGINE} == set(Options.__annotations__) - {"seed"}  # --seed is the request's


def test_the_displayed_defaults_are_the_real_ones() -> None:
    real: dict[str, Any] = {"engine_mode": "inline", "reasoning_parser": AUTO}
    for config_type in (CacheConfig, SchedulerConfig, RunnerConfig, SamplingParams):
        real.update({spec.name: spec.default for spec in fields(config_type)})
    displayed = {
        name: setting.default for name, setting in ALL.items() if setting.default != "" and name != "max_tokens"
    }
    assert displayed == {name: real[name] for name in displayed}


def test_the_displayed_defaults_of_a_server_are_the_real_ones() -> None:
    real: dict[str, Any] = {"insecure": False, "register_weight": DEFAULT_WEIGHT}
    for config_type in (ServerConfig, HttpConfig, AdmissionLimits, TenantLimits, ListenAddress):
        real.update({spec.name: spec.default for spec in fields(config_type)})
    real.update({f"jwt_{spec.name}": spec.default for spec in fields(JWTConfig)})
    real.update({setting.name: None for setting in TRACING})
    for setting in SERVER:
        default = setting.default
        if default != "":
            displayed = setting.parse(default) if isinstance(default, str) else default
            assert displayed == real[setting.name], setting.name
        else:
            assert real.get(setting.name) in (None, (), ""), setting.name  # no default, or one that only words describe


def test_every_boolean_setting_has_a_default_or_says_what_it_depends_on() -> None:
    flags = [setting for _, group in GROUPS for setting in group if setting.parse is boolean]
    assert flags and all(isinstance(setting.default, bool) or setting.default_text for setting in flags)


def test_a_file_may_have_every_setting_of_every_command() -> None:
    known = {setting.dest for _, group in GROUPS for setting in group} | {settings.CONFIG.dest}
    for parser in leaf_parsers(build_parser()):
        assert {setting.dest for setting in parser.settings} <= known, parser.prog


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


class FakeFile:
    """Settings file with these values."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def read(self, setting: Setting) -> tuple[Any, str] | None:
        return (self.values[setting.dest], "f.yaml line 1") if setting.dest in self.values else None


def test_sections_of_a_group_have_each_of_its_settings_once() -> None:
    groups = dict(GROUPS)
    for title, sections in settings.SECTIONS.items():
        assert [setting for section in sections.values() for setting in section] == list(groups[title])
