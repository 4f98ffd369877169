"""autoscaler_config, parse_queries: convert settings to the autoscaler's config and its queries."""

import math
from collections.abc import Mapping
from dataclasses import replace
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
from chairlift.cli.settings_to_config import config_of
from chairlift.core.errors import ConfigError
from chairlift.fleet.prometheus_signals import PrometheusSignals
from chairlift.fleet.query_signals import SAMPLE_FIELDS
from chairlift.web.registry.json_client import JSONClient, JSONClientConfig

WAKE_QUERY = "held_requests"

RANGES = {
    "replica_cpus": (0, math.inf, False), "replica_gpus": (0, math.inf, False),
    "replica_drain_timeout": (0, math.inf, False), "replica_start_timeout": (0, math.inf, True),
    "replica_unresponsive_timeout": (0, math.inf, True), "slo_quantile": (0, 1, True),
}  # fmt: skip
"""Least and largest value of a setting, and whether the bounds are excluded."""


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
