"""model_display_name: the name of a model without its folder's path."""

import os
from pathlib import Path


def model_display_name(model: str) -> str:
    """Return the default name of a model in the API.

    It is the hub id or built-in name, or the last part of the folder.
    """
    path = Path(model).expanduser()
    if path.is_file():  # a link in the hub's cache has the name, and its target is named by a hash
        return Path(os.path.abspath(path)).name
    return path.resolve().name if path.exists() else model
