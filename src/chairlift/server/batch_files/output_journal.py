"""OutputJournal: the output file of a batch, to which each response is appended when it comes.

The file itself is the state of the batch: after an interruption its whole lines are done, and the rest of the last line
is removed. So no response is lost, and none is written twice.
"""

import contextlib
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import orjson

from chairlift.core.errors import ConfigError


class OutputJournal:
    """An output file, open for appending by this process alone.

    Attributes:
        done: custom ids of the responses that the file has.
    """

    def __init__(self, path: Path, custom_ids: Collection[str]) -> None:
        """Open or create the file, and read what an earlier run has done.

        Raises ConfigError when another process writes the file, or when it has lines of another batch, and OSError.
        """
        self._path = path
        self._file: IO[bytes] = path.open("a+b")
        try:
            self._lock()
            self.done = self._recover(frozenset(custom_ids))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, custom_id: str, entry: Mapping[str, Any]) -> None:
        """Write the response of a request. Raises OSError; the request is not done then."""
        self._file.write(orjson.dumps(entry) + b"\n")
        self._file.flush()
        self.done.add(custom_id)

    def close(self) -> None:
        """Close the file, its content on the disk. May be called more than once."""
        if self._file.closed:
            return
        with contextlib.suppress(OSError):  # of a pipe or a device
            os.fsync(self._file.fileno())
        self._file.close()

    def _lock(self) -> None:
        if sys.platform == "win32":  # two commands on one file are not noticed there
            return
        import fcntl

        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another process writes {self._path}; wait for its end", option="output") from None

    def _recover(self, custom_ids: frozenset[str]) -> set[str]:
        """Return the custom ids of the whole lines; remove what follows the last of them."""
        done: set[str] = set()
        if not self._path.is_file():  # a device or a pipe has no earlier lines
            return done
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            custom_id = _custom_id_of(line)
            if custom_id not in custom_ids:
                raise ConfigError(
                    f"line {number} of {self._path} is no response to a request of this batch; name another file",
                    option="output",
                )
            done.add(custom_id)
            end += len(line)
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)
        return done


def _custom_id_of(line: bytes) -> str:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return ""
    custom_id = entry.get("custom_id") if isinstance(entry, dict) else None
    return custom_id if isinstance(custom_id, str) else ""
