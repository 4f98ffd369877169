"""check_outputs: checks before a command runs that its output files can be written."""

import os
from collections.abc import Mapping
from pathlib import Path

from chairlift.core.errors import ConfigError


def check_output(path: str) -> None:
    """Raise ConfigError for an output file that cannot be written; the file is not changed."""
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")
    if not folder.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {folder}")
    existing = target if target.exists() else folder
    if not os.access(existing, os.W_OK):
        is_read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
        raise ConfigError(f"cannot write {path}: {'read-only file system' if is_read_only else 'permission denied'}")


def check_outputs(outputs: Mapping[str, str | None], inputs: Mapping[str, str | None] | None = None) -> None:
    """Raise ConfigError for an output file that cannot be written or is used twice.

    Args:
        outputs: paths of output files by flag; None for a flag that is not given.
        inputs: the same for input files.
    """
    names: dict[Path, str] = {}
    for name, path in {**(inputs or {}), **outputs}.items():
        if path is None or path == "-" or (name not in outputs and not Path(path).is_file()):
            continue
        if name in outputs:
            check_output(path)
        target = Path(path).resolve()
        is_shared = target.exists() and not target.is_file()  # a pipe, a terminal
        if (other := names.setdefault(target, name)) != name and not is_shared:
            raise ConfigError(f"{other} and {name} are the same file, {path}; name different files")
