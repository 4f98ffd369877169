"""StateFolder: the files of a fleet of local replicas, and the locks that say what runs.

    FOLDER/controller.lock          locked by the one controller of the fleet
    FOLDER/replicas/r-0123abcd45/
        record.json                 ProcessRecord, replaced as a whole
        lock                        locked by the replica's process, which inherits the locked descriptor
        pid                         process id, written by the launcher
        log, log.1                  output of the process

The controller locks a replica's file before the process exists and hands the descriptor on, so there is no moment in
which a process runs without its lock. A lock belongs to the open file: it ends with its process and not before, and a
recycled process id holds none. Nothing is flushed to disk: the files describe processes, which a power cut ends, too.
"""

import fcntl
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from chairlift.cluster.local.launcher import PID_FILE
from chairlift.cluster.local.process_record import ProcessRecord
from chairlift.core.cluster_errors import ClusterFailed

log = logging.getLogger(__name__)

RECORD_FILE, LOCK_FILE, LOG_FILE, OLD_LOG_FILE = "record.json", "lock", "log", "log.1"
LOCK_SECONDS = 2.0
"""Seconds that a controller waits for its lock: one that was killed keeps it until the system has removed it."""

POLL_SECONDS = 0.01


class StateFolder:
    """The folder of one fleet. All methods but `open` need it to be open; they raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.expanduser().absolute()
        self._replicas = self._folder / "replicas"
        self._lock: int | None = None

    def open(self) -> None:
        """Create the folder where it is missing, and lock it. Raises ClusterFailed when another controller has it."""
        try:
            for folder in (self._folder, self._replicas):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._replicas.chmod(0o700)  # the folder itself may be one that others use, too
            lock = os.open(self._folder / "controller.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ClusterFailed(f"cannot use the folder {self._folder}: {error}") from None
        until = time.monotonic() + LOCK_SECONDS
        while not _try_lock(lock):
            if time.monotonic() >= until:
                owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(lock)
                raise ClusterFailed(
                    f"another controller, process {owner}, uses the folder {self._folder}; "
                    "a fleet has one controller, so stop that one or use another folder"
                )
            time.sleep(POLL_SECONDS)
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        """Unlock the folder. May be called more than once."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- one replica -----------------------------------------------------------------------------------------------

    def path(self, replica_id: str) -> Path:
        """Return the folder of a replica."""
        return self._replicas / replica_id

    def create(self) -> str:
        """Create the folder of a new replica, and return its id."""
        while True:
            replica_id = f"r-{secrets.token_hex(5)}"
            try:
                self.path(replica_id).mkdir(mode=0o700)
            except FileExistsError:
                continue
            return replica_id

    def remove(self, replica_id: str) -> None:
        """Remove the folder of a replica; a part of it that is left is removed by the next controller."""
        shutil.rmtree(self.path(replica_id), ignore_errors=True)

    def take_lock(self, replica_id: str) -> int:
        """Return the locked descriptor for the process of a new replica."""
        lock = os.open(self.path(replica_id) / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock

    def is_locked(self, replica_id: str) -> bool:
        """Return whether the process of a replica runs."""
        try:
            lock = os.open(self.path(replica_id) / LOCK_FILE, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(lock)
        finally:
            os.close(lock)

    def pid(self, replica_id: str) -> int | None:
        """Return the process id that the launcher noted; None before that."""
        try:
            pid = int((self.path(replica_id) / PID_FILE).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None
        return pid if pid > 1 else None

    def write(self, record: ProcessRecord) -> None:
        """Replace the record of a replica: a reader sees the old one or the new one."""
        write_private(self.path(record.replica_id) / RECORD_FILE, record.to_json())

    def records(self) -> Iterator[tuple[str, ProcessRecord | None]]:
        """Yield the id and the record of each replica; None for a record that is missing or cannot be read."""
        for path in sorted(self._replicas.iterdir()):
            try:
                record = ProcessRecord.from_json((path / RECORD_FILE).read_text(encoding="utf-8"))
                if record.replica_id != path.name:
                    raise ValueError(f"it is of replica {record.replica_id!r}")
            except FileNotFoundError:
                record = None
            except (OSError, ValueError) as error:
                log.warning("the record of replica %s cannot be read: %s", path.name, error)
                record = None
            yield path.name, record


def write_private(path: Path, text: str) -> None:
    """Replace a file that this user alone can read: a reader sees the old text or the new one."""
    new = path.with_suffix(".new")
    with open(new, "w", encoding="utf-8", opener=open_private) as file:
        file.write(text)
    new.rename(path)


def open_private(path: str, flags: int) -> int:
    """Open a file that this user alone can read, for `open`."""
    return os.open(path, flags, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
