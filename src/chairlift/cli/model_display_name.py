"""model_display_name: the name of a model without its folder's path."""

from pathlib import Path


def model_display_name(model: str) -> str:
    """Return the default name of a model in the API.

    It is the hub id or built-in name, or the last part of the folder.
    """
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model
