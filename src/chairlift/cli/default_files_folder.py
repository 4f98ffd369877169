"""with_files_folder: the settings of a service with the folder of its files, which each address has its own."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from chairlift.cli.user_state_folder import user_state_folder

log = logging.getLogger(__name__)

DEFAULT_PORT = 8000

USUAL_HOSTS = frozenset({"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})
"""Addresses of which a computer has one service on a port: its folder is named for the port alone."""


def with_files_folder(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with `files_folder`: the one that they have, or else one in the user's state folder.

    A service on a free port (0) has none: nothing would find it again. Neither has one of a user without a home
    directory, which a warning says.
    """
    port = options.get("port", DEFAULT_PORT)
    if options.get("files_folder") is not None or port == 0:
        return dict(options)
    if (base := user_state_folder(environ)) is None:
        log.warning(
            "this user has no home directory, so that files and batches are kept until the process ends; "
            "--files-folder names a folder that stays"
        )
        return dict(options)
    host = str(options.get("host") or "")
    place = "" if host in USUAL_HOSTS else re.sub(r"[^A-Za-z0-9.-]", "_", host) + "-"
    return {**options, "files_folder": str(base / "chairlift" / f"files-{place}{port}")}
