"""`chairlift config validate`: prints every problem of a settings file with its line."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from chairlift.cli.autoscaler_options import autoscaler_config
from chairlift.cli.escape_control_chars import escape_line
from chairlift.cli.fleet_options import validate_fleet_options
from chairlift.cli.log_setup import log_config
from chairlift.cli.prompt_items import sampling_params
from chairlift.cli.router_options import validate_router_options
from chairlift.cli.server_options import engine_queue_size, validate_server_options
from chairlift.cli.settings import settings
from chairlift.cli.settings.config_file import ConfigFile, read_config
from chairlift.cli.settings.resolve_settings import process_environment
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.yaml_nodes import Problem
from chairlift.cli.terminal_fold import print_folded
from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.llm.build import validate_options
from chairlift.llm.options import Options

Check = Callable[[dict[str, Any]], object]


def _check_engine(options: dict[str, Any]) -> None:
    validate_options(cast("Options", options))


CHECKS: Mapping[str, Check] = {
    "server": validate_server_options, "engine": _check_engine, "sampling": sampling_params, "logging": log_config,
    "router": validate_router_options, "fleet": validate_fleet_options, "autoscaler": autoscaler_config,
}  # fmt: skip
"""The validation of a group's values that needs no model."""


def run(arguments: argparse.Namespace) -> int:
    """Print the problems; returns the exit code: 1 when there is one.

    Raises ConfigError when no file is named.
    """
    variable = settings.CONFIG.variable
    path = arguments.path or process_environment().get(variable)
    if not path:
        raise ConfigError(f"no settings file is named; give FILE.yaml or set {variable}", option="config")
    file = read_config(path)
    problems = sorted([*file.problems, *invalid_values(file), *_small_queue(file)], key=lambda problem: problem.line)
    for problem in problems:
        print_folded(escape_line(file.format_problem(problem)))
    if not problems:
        count = len(file.values)
        print_folded(escape_line(f"{path}: valid, {count} setting{'s' * (count != 1)}"))
    return 1 if problems else 0


def invalid_values(file: ConfigFile) -> Iterator[Problem]:
    """Yield the problems of values that could be parsed: out of bounds, or not valid together."""
    for title, group in settings.GROUPS:
        present, values = _values_of(file, group)
        while title in CHECKS and (problem := _find_first(file, CHECKS[title], present, values)) is not None:
            yield problem


def _small_queue(file: ConfigFile) -> Iterator[Problem]:
    """Yield the problem of a max_queue_size that `serve` rejects, if no flag or variable changes the limits."""
    (_, server), (present, engine) = _values_of(file, settings.SERVER), _values_of(file, settings.SERVE_SETTINGS)
    limits = {name: value for name, value in server.items() if name == "max_waiting_requests" and value >= 0}
    if (problem := _find_first(file, partial(engine_queue_size, limits), present, engine)) is not None:
        yield problem


def _values_of(file: ConfigFile, group: Sequence[Setting]) -> tuple[list[Setting], dict[str, Any]]:
    """Return the settings of a group that a file has, and their values by name."""
    present = [setting for setting in group if setting.dest in file.values]
    return present, {setting.name: read[0] for setting in present if (read := file.read(setting)) is not None}


def _find_first(file: ConfigFile, check: Check, present: list[Setting], values: dict[str, Any]) -> Problem | None:
    """Return the first problem, and remove its value so that the next call finds the next one."""
    try:
        check(dict(values))
        return None
    except ChairliftError as error:
        option = str(error.details.get("option") or error.details.get("param") or "").partition("[")[0]
        wrong = next((setting for setting in present if setting.name == option and option in values), None)
        if wrong is None:
            values.clear()  # the error does not name the wrong value
            return Problem(0, error.message)
        del values[wrong.name]
        message = error.message.replace(wrong.name, wrong.dest, 1)
        return Problem(file.values[wrong.dest].line, message)
