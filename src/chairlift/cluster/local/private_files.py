"""write_private, open_private: files that only their owner can read."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file that this user alone can read: a reader sees the old text or the new one."""
    new = path.with_suffix(".new")
    with open(new, "w", encoding="utf-8", opener=open_private) as file:
        file.write(text)
    new.rename(path)


def open_private(path: str, flags: int) -> int:
    """Open a file that this user alone can read, for `open`."""
    return os.open(path, flags, 0o600)
