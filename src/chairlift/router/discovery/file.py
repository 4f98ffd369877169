"""FileSource: the replicas of a YAML or JSON file, which is read again when it changes."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.base import Snapshot
from chairlift.router.discovery.replica_file import MAX_FILE_BYTES, parse_replica_file

POLL_SECONDS = 1.0
"""Seconds between two looks at a file's size and time of change."""

SETTLE_SECONDS = 0.05
MAX_SETTLE_READS = 20

_Stamp = tuple[int, int, int]
"""A file's time of change, size and inode."""


class FileSource:
    """A YAML or JSON file of replicas (see replica_file.py)."""

    def __init__(self, path: Path, *, poll_seconds: float = POLL_SECONDS) -> None:
        """Create the source of a file, which must be readable. Raises ConfigError."""
        self.name = f"file:{path}"
        self._path, self._poll_seconds = path, poll_seconds
        self._read()

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the list at once, and after each change of the file's size, time of change or inode."""
        last, stamp = None, None
        while True:
            if stamp is None or self._stamp() != stamp:
                snapshot, stamp = await self._read_settled()
                if snapshot != last:
                    yield snapshot
                last = snapshot
            await asyncio.sleep(self._poll_seconds)

    async def _read_settled(self) -> tuple[Snapshot, _Stamp]:
        """Return list and stamp of a file that does not change for SETTLE_SECONDS. Raises DiscoveryFailed.

        A writer that does not replace the file by a rename leaves it half written for a moment, and half a list is
        often a valid list.
        """
        for _ in range(MAX_SETTLE_READS):
            stamp = self._stamp()
            try:
                snapshot, reason = self._read(), ""
            except ConfigError as error:
                snapshot, reason = (), str(error)
            await asyncio.sleep(SETTLE_SECONDS)
            if stamp is not None and self._stamp() == stamp:
                break
        else:
            reason = reason or f"{self._path} changes all the time"
        if reason or stamp is None:
            raise DiscoveryFailed(reason)
        return snapshot, stamp

    def _stamp(self) -> _Stamp | None:
        """Return what changes with the file's content, None without a file."""
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> Snapshot:
        """Return the file's list. Raises ConfigError."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror or error}") from None
        return parse_replica_file(data, self._path)
