"""Settings: complete tables, real defaults, and the order of flag, variable and file."""

from dataclasses import fields
from typing import Any

from chairlift.cli.command_line import build_parser
from chairlift.cli.registration_options import DEFAULT_WEIGHT
from chairlift.cli.settings import settings
from chairlift.cli.settings.service_settings import TRACING
from chairlift.cli.settings.settings import ENGINE, GROUPS, SAMPLING, SERVER
from chairlift.cli.settings.value_parsers import boolean
from chairlift.core.sampling_params import SAMPLING_FIELDS, SamplingParams
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.llm.options import Options
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.server.config import ServerConfig
from chairlift.server.server_process import ListenAddress
from chairlift.text.reasoning_formats import AUTO
from chairlift.web.admission import AdmissionLimits
from chairlift.web.auth.jwt_verifier import JWTConfig
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.tenant_limits import TenantLimits
from support_parsers import leaf_parsers

ALL = {setting.name: setting for setting in SAMPLING + ENGINE}


def test_every_sampling_parameter_and_every_engine_option_has_a_setting() -> None:
    assert sorted(setting.name for setting in SAMPLING) == sorted(SAMPLING_FIELDS)
    # --seed is the request's, and no command takes adapters.
    assert {setting.name for setting in ENGINE} == set(Options.__annotations__) - {"seed", "enable_lora"}


def test_the_displayed_defaults_are_the_real_ones() -> None:
    real: dict[str, Any] = {"engine_mode": "inline", "reasoning_parser": AUTO}
    for config_type in (CacheConfig, SchedulerConfig, LivenessConfig, RunnerConfig, SamplingParams):
        real.update({spec.name: spec.default for spec in fields(config_type)})
    displayed = {
        name: setting.default for name, setting in ALL.items() if setting.default != "" and name != "max_tokens"
    }
    assert displayed == {name: real[name] for name in displayed}


def test_the_displayed_defaults_of_a_server_are_the_real_ones() -> None:
    real: dict[str, Any] = {"insecure": False, "register_weight": DEFAULT_WEIGHT}
    for config_type in (ServerConfig, HttpConfig, AdmissionLimits, TenantLimits, FilesConfig, ListenAddress):
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


def test_sections_of_a_group_have_each_of_its_settings_once() -> None:
    groups = dict(GROUPS)
    for title, sections in settings.SECTIONS.items():
        assert [setting for section in sections.values() for setting in section] == list(groups[title])
