"""`chairlift config validate`: everything that is wrong with a file of settings, each with its line."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from chairlift.cli.console import log_config, tamed_line
from chairlift.cli.prompt_file import sampling_params
from chairlift.cli.server_options import validate_server_options
from chairlift.cli.settings import settings
from chairlift.cli.settings.config_file import ConfigFile, read_config
from chairlift.cli.settings.settings import Setting
from chairlift.cli.settings.yaml_nodes import Problem
from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.llm.build import validate_options
from chairlift.llm.options import Options

Check = Callable[[dict[str, Any]], object]


def _check_engine(asked: dict[str, Any]) -> None:
    validate_options(cast("Options", asked))


CHECKS: Mapping[str, Check] = {
    "server": validate_server_options, "engine": _check_engine, "sampling": sampling_params, "logging": log_config,
}  # fmt: skip
"""What says of the settings of a group whether they can be, without a model."""


def run(arguments: argparse.Namespace) -> int:
    """Say what is wrong; returns the exit code: 1 where anything is. Raises ConfigError when no file is named."""
    variable = settings.CONFIG.environment
    path = arguments.path or settings.environment().get(variable)
    if not path:
        raise ConfigError(f"which file? chairlift config validate FILE.yaml, or {variable}", option="config")
    file = read_config(path)
    problems = sorted([*file.problems, *invalid_values(file)], key=lambda problem: problem.line)
    for problem in problems:
        print(tamed_line(file.shown(problem)))
    if not problems:
        count = len(file.values)
        print(tamed_line(f"{path}: good, {count} setting{'s' * (count != 1)}"))
    return 1 if problems else 0


def invalid_values(file: ConfigFile) -> Iterator[Problem]:
    """Yield what is wrong with values that could be read: out of bounds, or not possible with each other."""
    for title, group in settings.GROUPS:
        written = [setting for setting in group if setting.dest in file.values]
        values = {setting.name: read[0] for setting in written if (read := file.read(setting)) is not None}
        while title in CHECKS and (problem := _first(file, CHECKS[title], written, values)) is not None:
            yield problem


def _first(file: ConfigFile, check: Check, written: list[Setting], values: dict[str, Any]) -> Problem | None:
    """Return the first thing that is wrong, and take the value that is to blame away, so that the next can be seen."""
    try:
        check(dict(values))
        return None
    except ChairliftError as error:
        option = str(error.details.get("option") or error.details.get("param") or "").partition("[")[0]
        blamed = next((setting for setting in written if setting.name == option and option in values), None)
        if blamed is None:
            values.clear()  # nobody knows which of them it is
            return Problem(0, error.message)
        del values[blamed.name]
        said = error.message.replace(blamed.name, blamed.dest, 1)
        return Problem(file.values[blamed.dest].line, said)
