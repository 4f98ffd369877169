"""user_state_folder: the folder in which this user's programs keep their state."""

from collections.abc import Mapping
from pathlib import Path


def user_state_folder(environ: Mapping[str, str]) -> Path | None:
    """Return $XDG_STATE_HOME, by default ~/.local/state; None for a user without a home directory.

    A relative $XDG_STATE_HOME is ignored, as its specification says.
    """
    named = Path(environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError:  # no $HOME, and the user's number is not in the list of users, as in some containers
        return None
