"""Door: from the settings of a server to what its parts are told."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.core.sampling import MAX_CHOICES
from chairlift.engine.config import SchedulerConfig
from chairlift.server.config import ServerConfig
from chairlift.server.server_process import ListenAddress
from chairlift.web.admission import AdmissionLimits
from chairlift.web.tenant_limits import TenantLimits

MAX_PORT = 65_535


def validate_server_options(door: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings of the door that cannot be; files that they name are not looked at."""
    listen_address(door)
    server_config(tuple(door.get("served_model_name") or ["model"]), door)


def listen_address(door: Mapping[str, Any]) -> ListenAddress:
    """Return where a server with these settings listens. Raises ConfigError."""
    certificate, key = door.get("tls_cert"), door.get("tls_key")
    if (certificate is None) != (key is None):
        raise ConfigError("--tls-cert and --tls-key go together", option="tls_cert")
    if not 0 <= door.get("port", 0) <= MAX_PORT:
        raise ConfigError(f"port must be between 0 and {MAX_PORT}, got {door['port']}", option="port")
    there = {name: door[name] for name in ("host", "port") if name in door}
    if certificate is None or key is None:
        return ListenAddress(**there)
    return ListenAddress(**there, certificate=Path(certificate), key=Path(key))


def server_config(names: tuple[str, ...], door: Mapping[str, Any]) -> ServerConfig:
    """Return the config of a door with these settings. Raises ConfigError."""
    own = _part(door, ServerConfig)
    for name in ("cors_origins", "metric_aliases"):
        if name in own:
            own[name] = tuple(own[name])
    return ServerConfig(
        served_names=names, admission=AdmissionLimits(**_part(door, AdmissionLimits)),
        tenant=TenantLimits(**_part(door, TenantLimits)), **own,
    )  # fmt: skip


def engine_queue_size(server: Mapping[str, Any], engine: Mapping[str, Any]) -> int:
    """Return the capacity of the engine's waiting queue, in sequences, for these server and engine settings.

    By default it holds every choice of every request that the server admits or the engine runs, so an admitted request
    is never rejected by the engine.

    Raises ConfigError for a `max_queue_size` that cannot hold the requests that the server admits.
    """
    admitted = AdmissionLimits(**_part(server, AdmissionLimits)).max_waiting_requests
    if "max_queue_size" not in engine:
        running = engine.get("max_running_requests", SchedulerConfig().max_running_requests)
        return max(1, (admitted + int(running)) * MAX_CHOICES)
    size = int(engine["max_queue_size"])
    if size < admitted:
        raise ConfigError(
            f"max_queue_size is {size}, but the server admits max_waiting_requests = {admitted}: raise the first or "
            "lower the second", option="max_queue_size",
        )  # fmt: skip
    return size


def _part(door: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Return the settings that a config has fields for."""
    return {field.name: door[field.name] for field in fields(kind) if field.name in door}
