"""PrivateFolder: a folder that one process of one user alone uses, made when it is first needed."""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO

from chairlift.core.errors import Unavailable

LOCK_FILE = "lock"


class PrivateFolder:
    """A folder on disk, locked against other processes while it is open.

    Attributes:
        path: the folder; None for a temporary one that is not made yet.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._is_temporary = path is None
        self._lock: IO[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """Whether this process holds the folder."""
        return self._lock is not None

    def open(self) -> Path:
        """Make and lock the folder, unless it is open; returns its path.

        Raises Unavailable where that fails.
        """
        try:
            if self.path is None:
                self.path = Path(tempfile.mkdtemp(prefix="chairlift-files-"))
            if self._lock is None:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = (self.path / LOCK_FILE).open("ab")
                try:
                    _take(lock)
                except OSError:
                    lock.close()
                    raise Unavailable("another server of this machine has the folder of files open") from None
                self._lock = lock
        except OSError as error:
            raise storage_error(error) from error
        return self.path

    def close(self) -> None:
        """Release the folder; a temporary one is deleted. May be called more than once."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._is_temporary and self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path = None


def storage_error(error: OSError) -> Unavailable:
    """Return the error for a client whose files cannot be written or read."""
    return Unavailable(f"the files of this server cannot be used: {error.strerror or type(error).__name__}")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file, also across a power failure: a reader finds the old content or the new one. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def _take(lock: IO[bytes]) -> None:
    if sys.platform == "win32":  # two servers on one folder are not noticed there
        return
    import fcntl

    fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
