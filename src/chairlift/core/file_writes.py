"""FileNotWritten, naming_file, write_whole: files that are written for people, and the error that names them."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chairlift.core.errors import ChairliftError

NO_RENAME_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""Errors of a folder in which files can be neither created nor renamed, though existing ones can be written."""


class FileNotWritten(ChairliftError):
    """A file cannot be written; the message has its name and the reason."""

    code = "file_not_written"


@contextmanager
def naming_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise FileNotWritten for an OSError of the block, but for that of a pipe whose reader has ended."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FileNotWritten(f"cannot write {path}: {write_error_reason(error, path)}") from error


def write_error_reason(error: OSError, path: str | os.PathLike[str]) -> str:
    """Return why a file cannot be written, in words: "no space left on device"."""
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    if isinstance(error, FileNotFoundError):
        return f"there is no folder {Path(path).parent}"
    reason = error.strerror or str(error) or type(error).__name__
    return reason[:1].lower() + reason[1:]


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, replacing an existing one only when the new one is complete.

    Raises FileNotWritten; a file that existed is as before then.
    """
    target = Path(path)
    with naming_file(path):
        if target.exists() and (str(path).startswith("/dev/") or not target.is_file()):  # a pipe, a terminal
            target.write_bytes(content)
        else:
            _replace(target.resolve(), content)


def _replace(target: Path, content: bytes) -> None:
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    except OSError as error:
        if error.errno not in NO_RENAME_ERRORS or not target.exists():
            raise
        target.write_bytes(content)
    finally:
        with suppress(OSError):
            unfinished.unlink()
