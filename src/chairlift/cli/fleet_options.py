"""Fleet options: convert the settings of `chairlift fleet` to what a fleet is built from."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.cli.autoscaler_options import autoscaler_config, parse_queries
from chairlift.cli.replica_spec_options import replica_spec
from chairlift.cluster.local.local_config import LocalConfig
from chairlift.cluster.local.state_folder import write_private
from chairlift.core.errors import ConfigError

REPLICA_KEY_FILE, REPLICA_ADMIN_KEY_FILE = "replica.key", "replica-admin.key"
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
