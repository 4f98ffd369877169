"""with_files_folder: the settings of a service with the folder of its files, which each port has its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT_PORT = 8000


def with_files_folder(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with `files_folder`: the one that they have, or else one in the user's state folder.

    A service on a free port (0) has none: nothing would find it again.
    """
    port = options.get("port", DEFAULT_PORT)
    if options.get("files_folder") is not None or port == 0:
        return dict(options)
    base = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return {**options, "files_folder": str(Path(base) / "chairlift" / f"files-{port}")}
