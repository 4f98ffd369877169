"""Fleet options: convert the settings of `chairlift fleet` to what a fleet is built from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.cli.autoscaler_options import autoscaler_config, parse_queries
from chairlift.cli.replica_spec_options import replica_spec
from chairlift.cluster.local.local_config import LocalConfig
from chairlift.core.errors import ConfigError

DEFAULT_HOLD_SECONDS = 120.0


def validate_fleet_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings of a fleet that are not valid; the files that they name are not read."""
    _, targets = parse_queries(options)
    autoscaler_config(options, targets)
    local_config(options, Path())
    replica_spec("", options, "")


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
