"""Fleet options: convert the settings of `chairlift fleet` to what a fleet is built from."""

import argparse
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chairlift.autoscaler.config import (
    AutoscalerConfig,
    BudgetConfig,
    ExternalTarget,
    StepLimit,
    TargetConfig,
    ThresholdConfig,
    WindowConfig,
    check_range,
)
from chairlift.autoscaler.limits.schedule import Schedule
from chairlift.cli.arg_parser import UsageError
from chairlift.cli.settings import settings
from chairlift.cli.settings.fleet_settings import AUTOSCALER, FLEET, SIGNALS
from chairlift.cli.settings.router_settings import ROUTER
from chairlift.cli.settings.service_settings import ACCESS, PAGE, TOKENS, TRACING
from chairlift.cli.settings_to_config import config_of
from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.local.local_config import LocalConfig
from chairlift.cluster.local.state_folder import write_private
from chairlift.core.errors import ConfigError
from chairlift.fleet.prometheus_signals import PrometheusSignals
from chairlift.fleet.query_signals import SAMPLE_FIELDS
from chairlift.web.registry.json_client import JSONClient, JSONClientConfig

REPLICA_KEY_FILE, REPLICA_ADMIN_KEY_FILE = "replica.key", "replica-admin.key"
DEFAULT_HOLD_SECONDS = 120.0

WAKE_QUERY = "held_requests"

RANGES = {
    "replica_cpus": (0, math.inf, False), "replica_gpus": (0, math.inf, False),
    "replica_drain_timeout": (0, math.inf, False), "replica_start_timeout": (0, math.inf, True),
    "replica_unresponsive_timeout": (0, math.inf, True), "slo_quantile": (0, 1, True),
}  # fmt: skip
"""Least and largest value of a setting, and whether the bounds are excluded."""

RESERVED_OPTIONS = frozenset({"host", "port", "config", "api-key", "model"})
"""Options of `serve` that the fleet gives itself."""


def autoscaler_config(options: Mapping[str, Any], external: tuple[ExternalTarget, ...] = ()) -> AutoscalerConfig:
    """Return the config of the autoscaler. Raises ConfigError with the setting's name, also for those of its pool."""
    for name, (low, high, is_open) in RANGES.items():
        check_range(name, options.get(name), low, high, is_open=is_open)
    in_seconds = {
        name: options[name] / 1000 for name in ("slo_ttft_ms", "slo_itl_ms") if options.get(name) is not None
    }  # fmt: skip
    targets = config_of(TargetConfig, {**options, **in_seconds}, {
        "target_wait": "wait_seconds", "target_concurrency": "concurrency", "target_kv_usage": "kv_usage_ratio",
        "target_cpu": "cpu_ratio", "target_memory": "memory_ratio", "target_gpu": "gpu_ratio",
        "slo_ttft_ms": "ttft_seconds", "slo_itl_ms": "itl_seconds",
    }, external=external)  # fmt: skip
    windows = config_of(WindowConfig, options, {
        "stable_window": "stable_seconds", "panic_window": "panic_seconds",
        "scale_down_delay": "stabilisation_seconds", "reversal_delay": "reversal_seconds",
    })  # fmt: skip
    budget = config_of(BudgetConfig, {"replica_type": "default", **options}, {
        "max_cost_per_hour": "cost_per_hour", "replica_price": "prices", "replica_type": "replica_type",
    })  # fmt: skip
    return config_of(
        AutoscalerConfig, options,
        {
            "min_replicas": "min_replicas", "max_replicas": "max_replicas", "scale_interval": "interval_seconds",
            "scale_to_zero_after": "idle_seconds", "cold_start": "cold_start_seconds", "dry_run": "is_dry_run",
        },
        targets=targets, windows=windows, budget=budget,
        schedules=tuple(map(parse_schedule, options.get("schedule") or ())),
        growth_limits=tuple(parse_step_limit("scale_up_limit", text) for text in options.get("scale_up_limit") or ()),
        shrink_limits=tuple(
            parse_step_limit("scale_down_limit", text) for text in options.get("scale_down_limit") or ()
        ),
        thresholds=threshold_config(options) if options.get("scaling") == "threshold" else None,
    )  # fmt: skip


def threshold_config(options: Mapping[str, Any]) -> ThresholdConfig:
    """Return the bounds of threshold mode. Raises ConfigError."""
    bounds: dict[str, Any] = {}
    for name in ("cpu", "memory", "queue"):
        text = options.get(f"threshold_{name}")
        if text is None:
            continue
        low, colon, high = text.partition(":")
        try:
            bounds[f"{name}_low"], bounds[f"{name}_high"] = (
                (None, None) if text == "off" else (float(low), float(high if colon else "?"))
            )
        except ValueError:
            option = f"threshold_{name}"
            raise ConfigError(f"{option} {text!r} must be LOW:HIGH, as in 0.3:0.7, or off", option=option) from None
    try:
        return replace(ThresholdConfig(), **bounds)
    except ConfigError as error:
        raise ConfigError(f"threshold_{error.message}", option="scaling") from None


def parse_step_limit(option: str, text: str) -> StepLimit:
    """Return the limit of `N/SECONDS`, or of `SHAREx/SECONDS`. Raises ConfigError."""
    amount, _, seconds = text.partition("/")
    try:
        period = float(seconds)
        if amount.endswith("x"):
            return StepLimit(ratio=float(amount[:-1]), period_seconds=period)
        return StepLimit(num_replicas=int(amount), period_seconds=period)
    except ValueError:
        raise ConfigError(f"{option} {text!r} must be N/SECONDS or SHAREx/SECONDS, as in 4/60", option=option) from None
    except ConfigError as error:
        raise ConfigError(f"{option} {text!r}: {error.message}", option=option) from None


def validate_fleet_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings of a fleet that are not valid; the files that they name are not read."""
    _, targets = parse_queries(options)
    autoscaler_config(options, targets)
    local_config(options, Path())
    replica_spec("", options, "")


def check_wake_signal(config: AutoscalerConfig, queries: Mapping[str, str]) -> None:
    """Raise ConfigError where a pool would go to zero and nothing could wake it."""
    if config.min_replicas == 0 and WAKE_QUERY not in queries:
        raise ConfigError(
            f"min_replicas 0 needs a query {WAKE_QUERY}, the requests that wait at the router for a first replica, as "
            f"in {WAKE_QUERY}=sum(chairlift_router_held_requests)", option="min_replicas",
        )  # fmt: skip


def open_signals(options: Mapping[str, Any], queries: Mapping[str, str]) -> PrometheusSignals | None:
    """Return what asks the queries; None without queries."""
    if not queries:
        return None
    return PrometheusSignals(JSONClient(JSONClientConfig(base_urls=(options["prometheus_url"],))), queries)


def parse_queries(options: Mapping[str, Any]) -> tuple[dict[str, str], tuple[ExternalTarget, ...]]:
    """Return the queries by name, and the targets of those that are not fields of a sample. Raises ConfigError."""
    queries, targets = dict[str, str](), options.get("query_target") or {}
    for text in options.get("query") or ():
        name, equals, query = text.partition("=")
        if not equals or not name.strip().isidentifier() or not query.strip():
            raise ConfigError(f"query {text!r} must be NAME=PROMQL, as in queue=sum(queue_length)", option="query")
        queries[name.strip()] = query.strip()
    if queries and not options.get("prometheus_url"):
        raise ConfigError("query needs prometheus_url, the server to ask", option="query")
    for name in queries.keys() - set(SAMPLE_FIELDS) - targets.keys():
        raise ConfigError(f"query {name!r} needs a target: query_target {name}=X", option="query")
    for name in targets.keys() - queries.keys():
        raise ConfigError(f"query_target names {name!r}, for which there is no query", option="query_target")
    external = [name for name in queries if name not in SAMPLE_FIELDS]
    return queries, tuple(ExternalTarget(name=name, target=targets[name]) for name in external)


def parse_schedule(text: str) -> Schedule:
    """Return the floor of `START;END;N[;ZONE]`. Raises ConfigError."""
    parts = [part.strip() for part in text.split(";")]
    if len(parts) not in (3, 4) or not parts[2].isdecimal():
        raise ConfigError(
            f"schedule {text!r} must be START;END;N or START;END;N;ZONE, as in 0 8 * * 1-5;0 18 * * 1-5;3;UTC",
            option="schedule",
        )
    try:
        return Schedule(start=parts[0], end=parts[1], replicas=int(parts[2]), time_zone=(*parts, "UTC")[3])
    except ConfigError as error:
        raise ConfigError(f"schedule {text!r}: {error.message}", option="schedule") from None


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
        parsed, unknown = build_parser().parse_known_args(["serve", *([model] if model else []), *arguments])
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


def local_config(options: Mapping[str, Any], folder: Path) -> LocalConfig:
    """Return where the replicas run on this machine. Raises ConfigError."""
    ports = options.get("replica_ports")
    gpus = tuple(each.strip() for each in (options.get("gpu_ids") or "").split(",") if each.strip())
    return LocalConfig(folder=folder, ports=None if ports is None else parse_ports(ports), gpus=gpus)


def parse_ports(text: str) -> tuple[int, int]:
    """Return the first and the last port of `FIRST-LAST`. Raises ConfigError."""
    first, dash, last = text.partition("-")
    if not (dash and first.strip().isdecimal() and last.strip().isdecimal()):
        raise ConfigError(f"replica_ports {text!r} must be FIRST-LAST, as in 8101-8199", option="replica_ports")
    return int(first), int(last)


def state_folder(options: Mapping[str, Any], environ: Mapping[str, str]) -> Path:
    """Return the folder of the fleet's state: one for each port, so that several fleets do not meet."""
    if folder := options.get("state_dir"):
        return Path(folder).absolute()
    base = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "chairlift" / f"fleet-{options.get('port', 8000)}"


def replica_key(folder: Path, name: str = REPLICA_KEY_FILE) -> str:
    """Return a key of the fleet's replicas, which is made at the first start and kept for the next ones.

    Raises ConfigError where the folder cannot be used.
    """
    file = folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.exists() and (key := file.read_text(encoding="ascii").strip()):
            return key
        key = secrets.token_urlsafe(32)
        write_private(file, f"{key}\n")
    except (OSError, UnicodeDecodeError) as error:
        what = "has a key that is no text" if isinstance(error, UnicodeDecodeError) else f"cannot be used: {error}"
        raise ConfigError(f"the fleet's folder {folder} {what}", option="state_dir") from None
    return key


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
