"""Router options: convert router settings to the RouterConfig and the discovery sources."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.cli.server_options import http_config
from chairlift.cli.settings_to_config import config_of, renamed
from chairlift.core.errors import ConfigError
from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.attempts.hedging import HedgeConfig
from chairlift.router.config import RouterConfig
from chairlift.router.discovery.base import DiscoverySource
from chairlift.router.discovery.make_source import make_source
from chairlift.router.discovery.static import StaticSource
from chairlift.router.health.breaker import BreakerConfig
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.consecutive_probes import ProbeConfig
from chairlift.router.health.webhook_notifier import NotifyConfig
from chairlift.router.model_aliases_and_canaries import ModelRoutes
from chairlift.router.proxy.upstream import UpstreamConfig
from chairlift.router.shared_state.shared_state_config import SharedStateConfig

SEED_LIMIT = 2**31

REMOTE_SCHEMES = ("dns://", "dns+srv://", "consul://", "etcd://")
"""Sources whose URLs can be checked without a file of this machine."""


def validate_router_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for router settings that are not valid.

    The files that they name are not read, and replicas may be missing: a flag may name them.
    """
    router_config(options)
    replicas = options.get("replica") or ()
    remote = [text for text in options.get("discovery") or () if text.startswith(REMOTE_SCHEMES)]
    if replicas or remote:
        discovery_sources({"replica": replicas, "discovery": remote})


def discovery_sources(options: Mapping[str, Any]) -> list[DiscoverySource]:
    """Return where these settings find replicas. Raises ConfigError, also where they name no source."""
    replicas, sources = options.get("replica") or (), options.get("discovery") or ()
    if not replicas and not sources:
        raise ConfigError(
            "a router needs replicas: name them by --replica http://HOST:PORT, or where to find them by --discovery",
            option="replica",
        )
    static = [StaticSource.parse(replicas)] if replicas else []
    return [*static, *map(_source, sources)]


def _source(text: str) -> DiscoverySource:
    try:
        return make_source(text)
    except ConfigError as error:
        subject = "discovery" if error.message.startswith(repr(text)) else f"discovery {text!r}:"
        raise ConfigError(f"{subject} {error.message}", option="discovery") from None


def router_config(options: Mapping[str, Any]) -> RouterConfig:
    """Return the config of a router with these settings. Raises ConfigError."""
    try:
        routes = ModelRoutes.parse(options.get("model_route") or ())
    except ConfigError as error:
        message = error.message.replace("model route", "model_route", 1)
        raise ConfigError(message, option="model_route") from None
    own = {name: options[name] for name in ("policy", "session_cookie") if name in options}
    if "session_header" in options:
        own["session_header"] = options["session_header"].lower()
    return RouterConfig(
        **own, routes=routes, attempts=_attempt_limits(options),
        hedging=HedgeConfig() if options.get("hedging") else None,
        health=_health_config(options), upstream=upstream_config(options), http=http_config(options),
        notify=NotifyConfig(url=options["notify_url"]) if options.get("notify_url") else None,
        hold_timeout=options.get("hold_timeout", 0.0),
        shared_state=_shared_state_config(options), empty_grace_seconds=options.get("empty_grace", 60.0),
        seed=random.SystemRandom().randrange(SEED_LIMIT),
    )  # fmt: skip


def _attempt_limits(options: Mapping[str, Any]) -> AttemptLimits:
    names = {
        "max_attempts": "max_attempts", "connect_timeout": "connect_timeout_seconds",
        "first_token_timeout": "first_token_timeout_seconds", "inter_token_timeout": "inter_token_timeout_seconds",
        "hold_timeout": "replacement_wait_seconds",
    }  # fmt: skip
    return config_of(AttemptLimits, options, names)


def _health_config(options: Mapping[str, Any]) -> HealthConfig:
    probes = {"probe_interval": "interval_seconds", "probe_timeout": "timeout_seconds"}
    breaker = {"max_failures": "max_failures", "recovery_timeout": "recovery_timeout_seconds"}
    return config_of(
        HealthConfig, options, {"slow_start": "slow_start_seconds"},
        probes=config_of(ProbeConfig, options, probes), breaker=config_of(BreakerConfig, options, breaker),
    )  # fmt: skip


def upstream_config(options: Mapping[str, Any]) -> UpstreamConfig:
    """Return how replicas are reached. Raises ConfigError."""
    names = {
        "replica_key_file": "key_file", "replica_admin_key_file": "admin_key_file", "replica_tls_ca": "ca",
        "replica_tls_cert": "certificate", "replica_tls_key": "key",
    }  # fmt: skip
    return UpstreamConfig(**{name: Path(value) for name, value in renamed(options, names).items()})


def _shared_state_config(options: Mapping[str, Any]) -> SharedStateConfig:
    names = {
        "shared_state_password_file": "password_file", "shared_state_tls_ca": "tls_ca",
        "shared_state_sentinel_password_file": "sentinel_password_file",
    }  # fmt: skip
    files = {name: Path(value) for name, value in renamed(options, names).items()}
    return SharedStateConfig(url=options.get("shared_state", ""), **files)
