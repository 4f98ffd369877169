"""ReplicaLogs: the new lines of all replicas' logs, their last lines, and a bound on their size.

A log is written by its replica alone, so that the replica does not depend on its controller. A log that is too long is
copied to log.1 and emptied: the replica appends, so it goes on at the beginning. A line that it writes in the
microseconds between the end of the copy and the emptying is lost.
"""

import contextlib
import logging
import os
import shutil
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from chairlift.cluster.local.private_files import open_private
from chairlift.cluster.local.state_folder import LOG_FILE, OLD_LOG_FILE, StateFolder

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 65_536
"""Longest line; a longer one is cut into several."""

CHUNK_BYTES = 1 << 20
"""Bytes that are read of one log at a time."""

MAX_WAITING_LINES = 10_000
"""Lines that wait for the reader; the oldest are dropped."""

TAIL_BYTES, TAIL_LINE_CHARS = 8192, 300


@dataclass(slots=True)
class _Position:
    offset: int
    rest: bytes = b""


class ReplicaLogs:
    """Logs in the folders of a fleet; methods of one thread, and none raises OSError."""

    def __init__(self, folder: StateFolder, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._positions: dict[str, _Position] = {}
        self._lines: deque[tuple[str, str]] = deque(maxlen=MAX_WAITING_LINES)
        self._is_followed = False

    def follow(self, replica_ids: Collection[str]) -> None:
        """Yield lines from now on: those that these replicas have not written yet, and all of later replicas."""
        if not self._is_followed:
            self._is_followed = True
            self._positions = {each: _Position(self._size(each)) for each in replica_ids}

    def read(self, replica_ids: Collection[str], ended: Collection[str]) -> list[tuple[str, str]]:
        """Return the new lines of replicas as (replica_id, line); a last line without an end only of `ended` ones."""
        for replica_id in replica_ids:
            self._collect(replica_id, CHUNK_BYTES, is_complete=replica_id in ended)
        lines = list(self._lines)
        self._lines.clear()
        return lines

    def forget(self, replica_id: str) -> None:
        """Keep the unread lines of a replica whose folder is about to be removed."""
        self._collect(replica_id, self._max_bytes, is_complete=True)
        self._positions.pop(replica_id, None)

    def bound(self, replica_id: str) -> None:
        """Move a log that is too long to log.1."""
        if self._size(replica_id) <= self._max_bytes:
            return
        path = self._path(replica_id)
        new = path.with_name(f"{OLD_LOG_FILE}.new")
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            try:
                self._copy(replica_id, file, new)
            except OSError as error:  # the disk is full, and would stay so if the log grew on
                log.warning("the log of replica %s is too long and cannot be copied, so it is emptied: %s",
                            replica_id, error)  # fmt: skip
                with contextlib.suppress(OSError):
                    new.unlink()
                self._collect(replica_id, 2 * self._max_bytes, is_complete=False)
            file.truncate(0)
            if replica_id in self._positions:
                self._positions[replica_id].offset = 0

    def _copy(self, replica_id: str, file: BinaryIO, new: Path) -> None:
        with open(new, "wb", opener=open_private) as copy:
            if (excess := os.fstat(file.fileno()).st_size - 2 * self._max_bytes) > 0:
                file.seek(excess)
            shutil.copyfileobj(file, copy, CHUNK_BYTES)
            new.rename(new.with_suffix(""))
            self._collect(replica_id, file.tell(), is_complete=False)
            shutil.copyfileobj(file, copy, CHUNK_BYTES)  # what was written meanwhile
            self._collect(replica_id, CHUNK_BYTES, is_complete=False)

    def last_lines(self, replica_id: str, count: int) -> Sequence[str]:
        """Return the last lines of a log, at most `count`, without empty ones."""
        data = b""
        with contextlib.suppress(OSError), open(self._path(replica_id), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
        lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
        return [line[:TAIL_LINE_CHARS] for line in lines if line][-count:]

    def _collect(self, replica_id: str, max_bytes: int, *, is_complete: bool) -> None:
        """Move the new lines of a log to those that wait."""
        if not self._is_followed:
            return
        position = self._positions.setdefault(replica_id, _Position(0))
        try:
            with open(self._path(replica_id), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < position.offset:  # emptied by other hands
                    position.offset = 0
                file.seek(position.offset)
                data = file.read(max_bytes)
        except OSError:
            return
        position.offset += len(data)
        *lines, rest = (position.rest + data).split(b"\n")
        while len(rest) > MAX_LINE_BYTES:
            lines.append(rest[:MAX_LINE_BYTES])
            rest = rest[MAX_LINE_BYTES:]
        if is_complete and rest and position.offset >= size:
            lines, rest = [*lines, rest], b""
        position.rest = rest
        self._lines.extend((replica_id, line.decode("utf-8", "replace").rstrip("\r")) for line in lines)

    def _path(self, replica_id: str) -> Path:
        return self._folder.path(replica_id) / LOG_FILE

    def _size(self, replica_id: str) -> int:
        try:
            return self._path(replica_id).stat().st_size
        except OSError:
            return 0
