"""OutputJournal: the output file of a batch, to which each response is appended when it comes.

The file itself is the state of the batch: after an interruption its whole lines are done, and the rest of the last line
is removed. So no response is lost, and none is written twice. A file that is no such output is never changed.
"""

import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import orjson

from chairlift.core.errors import ConfigError

RETRIED_STATUSES = frozenset({401, 403, 408, 429, 500, 502, 503, 504})
"""Statuses that say nothing about the request itself: a later run sends it again."""

_BEGINNING = b'{"id":"batch_req_'


class OutputJournal:
    """An output file, open for appending by this process alone.

    Attributes:
        done: custom ids of the responses that the file has.
        num_errors: how many of them are an error.
    """

    def __init__(self, path: Path, custom_ids: Collection[str]) -> None:
        """Open or create the file, and read what an earlier run has done.

        Lines without a response, or with one of RETRIED_STATUSES, are removed: their requests are not done.

        Raises ConfigError when another process writes the file, or it is not the output of this batch, and OSError.
        """
        self._path = path
        self.done: set[str] = set()
        self.num_errors = 0
        is_device = path.exists() and not path.is_file()  # a pipe or a terminal has no earlier lines
        self._file: IO[bytes] = path.open("ab" if is_device else "a+b")
        try:
            self._lock()
            if not is_device:
                self._recover(frozenset(custom_ids))
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
        """Write the response of a request. Raises OSError; the request is not done then, and the file is as before."""
        entry, text = writable_entry(entry)
        append_whole(self._file.fileno(), text)
        self._count(custom_id, entry)

    def close(self) -> None:
        """Close the file, its content on the disk. May be called more than once."""
        if self._file.closed:
            return
        with contextlib.suppress(OSError):  # of a pipe or a device
            os.fsync(self._file.fileno())
        self._file.close()

    def _count(self, custom_id: str, entry: Mapping[str, Any]) -> None:
        self.done.add(custom_id)
        self.num_errors += not is_success(entry)

    def _lock(self) -> None:
        if sys.platform == "win32":  # two commands on one file are not noticed there
            return
        import fcntl

        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another process writes {self._path}; wait for its end", option="output") from None

    def _recover(self, custom_ids: frozenset[str]) -> None:
        """Read the whole lines, remove what follows the last of them, and the lines of requests that are not done."""
        self._file.seek(0)
        num_removed = end = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                if not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
                    raise self._foreign(number)
                break
            entry = parse_output_line(line)
            if entry is None or entry["custom_id"] not in custom_ids:
                raise self._foreign(number)
            end += len(line)
            if _is_retried(entry):
                num_removed += 1
                continue
            self._count(entry["custom_id"], entry)
        self._file.truncate(end)
        if num_removed:  # a second pass: the lines may be more than the memory
            self._file.seek(0)
            self._replace(line for line in self._file if not _is_retried(parse_output_line(line) or {}))
        self._file.seek(0, os.SEEK_END)

    def _replace(self, lines: Iterable[bytes]) -> None:
        """Replace the file by one with these lines, at once: an interruption leaves the one or the other."""
        new_file = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with new_file.open("wb") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            new_file.replace(self._path.resolve())
        except BaseException:
            new_file.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = self._path.open("a+b")
        self._lock()

    def _foreign(self, number: int) -> ConfigError:
        return ConfigError(
            f"line {number} of {self._path} is no response to a request of this batch; name another file",
            option="output",
        )


def _is_retried(entry: Mapping[str, Any]) -> bool:
    return output_status(entry) in (0, *RETRIED_STATUSES)


def is_output_line(line: bytes) -> bool:
    """Return whether a line is a whole one that begins as those of an output file do."""
    return line.startswith(_BEGINNING) and line.endswith(b"\n")


def parse_output_line(line: bytes) -> dict[str, Any] | None:
    """Return a line of an output file; None for another line."""
    if not line.startswith(_BEGINNING):
        return None
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    is_entry = isinstance(entry, dict) and isinstance(entry.get("custom_id"), str) and "response" in entry
    return entry if is_entry else None


def writable_entry(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
    """Return an entry and its line; a response that is nested too deeply to be written becomes an error."""
    try:
        return entry, orjson.dumps(entry) + b"\n"
    except orjson.JSONEncodeError:
        error = {"code": "response_not_written", "message": "the response is nested too deeply to be written"}
        entry = {**entry, "response": None, "error": error}
        return entry, orjson.dumps(entry) + b"\n"


def append_whole(descriptor: int, text: bytes) -> None:
    """Write a line at the end of a file that is open for appending. Raises OSError; the file is as before then."""
    rest, num_written = memoryview(text), 0
    try:
        while num_written < len(rest):  # unbuffered: a failure leaves nothing that close() would have to write
            num_written += os.write(descriptor, rest[num_written:])
    except OSError:
        if num_written:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - num_written)
        raise


def is_success(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry has a response with a status of 2xx."""
    return 200 <= output_status(entry) < 300


def output_status(entry: Mapping[str, Any]) -> int:
    """Return the HTTP status of a response, 0 without one."""
    response = entry.get("response")
    status = response.get("status_code") if isinstance(response, Mapping) else None
    return status if isinstance(status, int) else 0
