"""write, print_line, tell: write a report to a file and print its lines."""

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chairlift.core.errors import ConfigError

NO_RENAME_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""Errors of a folder in which files can be neither created nor renamed, though existing ones can be written."""


def write(path: str, report: Mapping[str, Any]) -> None:
    """Write a report as JSON, replacing an existing file only when the new one is complete.

    Raises ConfigError when the file cannot be written.
    """
    text, target = json.dumps(report, indent=1, allow_nan=False) + "\n", Path(path)
    try:
        if target.exists() and (path.startswith("/dev/") or not target.is_file()):  # a pipe, a terminal
            target.write_text(text, encoding="utf-8")
        else:
            _replace(target.resolve(), text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _replace(target: Path, text: str) -> None:
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        if error.errno not in NO_RENAME_ERRORS or not target.exists():
            raise
        target.write_text(text, encoding="utf-8")
    finally:
        with suppress(OSError):
            unfinished.unlink()


def print_line(line: str) -> None:
    """Write a line to the standard output at once, as a `note` of the functions here."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def tell(
    lines: Iterable[str], path: str | None, report: Mapping[str, Any], say: Callable[[str], None]
) -> None:  # fmt: skip
    """Print the lines of a report; then write it to `path`, if there is one, even when printing failed."""
    try:
        for line in lines:
            say(line)
    finally:
        if path is not None:
            write(path, report)
