"""state_folder, replica_key: the folder of a fleet's state, and the keys of its replicas that are kept in it."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.cli.user_state_folder import user_state_folder
from chairlift.cluster.local.private_files import write_private
from chairlift.core.errors import ConfigError

REPLICA_KEY_FILE, REPLICA_ADMIN_KEY_FILE = "replica.key", "replica-admin.key"


def state_folder(options: Mapping[str, Any], environ: Mapping[str, str]) -> Path:
    """Return the folder of the fleet's state: one for each port, so that several fleets do not meet.

    Raises ConfigError for a user without a home directory.
    """
    if folder := options.get("state_dir"):
        return Path(folder).absolute()
    if (base := user_state_folder(environ)) is None:
        raise ConfigError("this user has no home directory: name the folder of the fleet's state", option="state_dir")
    return base / "chairlift" / f"fleet-{options.get('port', 8000)}"


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
