"""replica_spec, updated_spec: make the ReplicaSpec of a fleet from its settings, and that of an update."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chairlift.cli.arg_parser import UsageError
from chairlift.cli.settings import settings
from chairlift.cli.settings.fleet_settings import AUTOSCALER, FLEET, SIGNALS
from chairlift.cli.settings.router_settings import ROUTER
from chairlift.cli.settings.service_settings import ACCESS, PAGE, TOKENS, TRACING
from chairlift.cluster.base import ReplicaSpec
from chairlift.core.errors import ConfigError

RESERVED_OPTIONS = frozenset({"host", "port", "config", "api-key", "model"})
"""Options of `serve` that the fleet gives itself."""


def serve_arguments(replica_options: Sequence[str], config_file: str = "") -> tuple[str, ...]:
    """Return the arguments of `chairlift serve` for options `NAME=VALUE` or `NAME`. Raises ConfigError."""
    arguments = ["--config", str(Path(config_file).absolute())] if config_file else []
    for text in replica_options:
        name, equals, value = text.removeprefix("--").partition("=")
        name = name.strip().replace("_", "-")
        if name.removeprefix("no-") in RESERVED_OPTIONS:
            raise ConfigError(f"replica_option {text!r}: the fleet sets {name} itself", option="replica_option")
        arguments += [f"--{name}", *([value] if equals else [])]
    return tuple(arguments)


def check_serve_arguments(model: str, arguments: Sequence[str]) -> None:
    """Raise ConfigError where `chairlift serve` would not start with these arguments."""
    from chairlift.cli.command_line import build_parser

    try:
        words = ["serve", *([model] if model else []), *arguments]
        parsed, unknown = build_parser(words).parse_known_args(words)
    except (UsageError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"replica_option: {error}", option="replica_option") from None
    if unknown:
        raise ConfigError(f"replica_option: `serve` has no option {unknown[0]}", option="replica_option")
    if parsed.command != "serve":
        raise ConfigError(f"replica_option: {' '.join(arguments)!r} are no options of `serve`", option="replica_option")


def replica_spec(model: str, options: Mapping[str, Any], key: str, admin_key: str = "") -> ReplicaSpec:
    """Return what a replica is; raises ConfigError.

    It accepts requests with `key` only, unless that is "", and has routes of administrators if there is an admin key.
    The keys are variables, which no list of processes shows.
    """
    keys = {"CHAIRLIFT_API_KEY": key, "CHAIRLIFT_ADMIN_KEY": admin_key}
    arguments = serve_arguments(options.get("replica_option") or (), options.get("replica_config", ""))
    check_serve_arguments(model, arguments)
    return ReplicaSpec(
        model=_absolute(model), arguments=arguments,
        environ={
            **_unset_variables(), **_tracing_variables(options), **_page_variables(options),
            **{name: value for name, value in keys.items() if value},
        },
        num_cpus=options.get("replica_cpus", 0), num_gpus=options.get("replica_gpus", 0),
        replica_type=options.get("replica_type", "default"),
    )  # fmt: skip


def updated_spec(model: str | None, arguments: tuple[str, ...] | None, spec: ReplicaSpec) -> ReplicaSpec:
    """Return the spec of an update: other options stay as they are, and so does what is None. Raises ConfigError."""
    model = spec.model if model is None else _absolute(model)
    for name in _by_name(arguments or ()):
        if name in RESERVED_OPTIONS:
            raise ConfigError(f"replica_option {name}: the fleet sets it itself", option="replica_option")
    merged = {**_by_name(spec.arguments), **_by_name(arguments or ())}
    arguments = tuple(word for words in merged.values() for word in words)
    check_serve_arguments(model, arguments)
    return replace(spec, model=model, arguments=arguments)


def _by_name(arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the words of each option by its name, without a `no-` before it; words before any option have "" ."""
    words: dict[str, tuple[str, ...]] = {}
    name, current = "", list[str]()
    for word in arguments:
        if word.startswith("--"):
            name, current = word[2:].partition("=")[0].removeprefix("no-"), []
        current.append(word)
        words[name] = tuple(current)
    return words


def _unset_variables() -> dict[str, str]:
    """Return the variables of the fleet's own settings, empty, which is the same as unset.

    These are all of them, so that the version of a replica is the same whatever the fleet's environment has.
    """
    server = (setting for setting in settings.SERVER if setting.name != "served_model_name")
    own = [*server, *ACCESS, *TOKENS, *ROUTER, *FLEET, *AUTOSCALER, *SIGNALS, settings.CONFIG, *settings.LOGGING]
    return dict.fromkeys((*settings.SECRETS, *(setting.variable for setting in own)), "")


def _tracing_variables(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables by which replicas send their traces where the fleet does."""
    variables = {setting.variable: str(options[setting.name]) for setting in TRACING if setting.name in options}
    if file := options.get("otlp_headers_file"):
        variables["CHAIRLIFT_OTLP_HEADERS_FILE"] = str(Path(file).absolute())
    return variables


def _page_variables(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable by which replicas serve no web page where the fleet serves none."""
    return {setting.variable: "false" for setting in PAGE if options.get(setting.name) is False}


def _absolute(model: str) -> str:
    """Return a folder's absolute path: replicas may have another current folder. A name of the hub stays."""
    return str(Path(model).absolute()) if model and Path(model).is_dir() else model
