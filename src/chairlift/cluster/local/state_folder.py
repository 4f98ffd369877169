"""StateFolder: the files of a fleet of local replicas, and the locks that say what runs.

    FOLDER/controller.lock          locked by the one controller of the fleet
    FOLDER/replicas/r-0123abcd45/
        record.json                 ProcessRecord, replaced as a whole
        lock                        locked by the replica's process, which inherits the locked descriptor
        pid                         process id, written by replica_exec_main
        log, log.1                  output of the process

The controller locks a replica's file before the process exists and hands the descriptor on, so there is no moment in
which a process runs without its lock. A lock belongs to the open file: it ends with its process and not before, and a
recycled process id holds none. Nothing is flushed to disk: the files describe processes, which a power cut ends, too.

Other hands may remove the folder while its fleet runs, such as a program that clears old files. Then the processes
still hold their removed locks, which /proc shows, and the controller knows each process by its id and start time.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from chairlift.cluster.local.private_files import write_private
from chairlift.cluster.local.process_record import ProcessRecord
from chairlift.cluster.local.processes_and_sessions import holders_of_removed, is_session_leader
from chairlift.cluster.local.replica_exec_main import PID_FILE
from chairlift.core.cluster_errors import ClusterFailed

log = logging.getLogger(__name__)

CONTROLLER_LOCK, ID_PREFIX = "controller.lock", "r-"
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
        lock = self._take_controller_lock()
        try:
            self._refuse_hidden_controller()
        except ClusterFailed:
            os.close(lock)
            raise
        self._lock = lock

    def keep(self) -> None:
        """Create and lock the folder again if other hands have removed it. Raises ClusterFailed as `open` does."""
        assert self._lock is not None
        try:
            if os.path.samestat(os.stat(self._folder / CONTROLLER_LOCK), os.fstat(self._lock)):
                return
        except FileNotFoundError:
            pass
        log.warning(
            "the folder %s was removed or emptied while its replicas run, and is written again; keep it where no old "
            "files are removed", self._folder,
        )  # fmt: skip
        lock = self._take_controller_lock()
        os.close(self._lock)
        self._lock = lock

    def close(self) -> None:
        """Unlock the folder. May be called more than once."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_controller_lock(self) -> int:
        """Create the folders, and return the locked descriptor. Raises ClusterFailed."""
        try:
            for folder in (self._folder, self._replicas):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._replicas.chmod(0o700)  # the folder itself may be one that others use, too
            lock = os.open(self._folder / CONTROLLER_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            advice = "give a folder that this user can write, with --state-dir"
            if isinstance(error, FileExistsError | NotADirectoryError):
                advice = "a file has its name or that of a folder above it; give another one with --state-dir"
            raise ClusterFailed(f"cannot use the folder {self._folder}: {error}; {advice}") from None
        try:
            until = time.monotonic() + LOCK_SECONDS
            while not _try_lock(lock):
                if time.monotonic() >= until:
                    raise self._is_used_by(os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown")
                time.sleep(POLL_SECONDS)
            with contextlib.suppress(OSError):  # a full disk: the note is for the message above alone
                os.ftruncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _refuse_hidden_controller(self) -> None:
        """Raise ClusterFailed if the lock of another controller was removed with the folder, and that one runs."""
        until = time.monotonic() + LOCK_SECONDS
        while pids := [pid for pid, path in holders_of_removed(self._folder) if path.name == CONTROLLER_LOCK]:
            if time.monotonic() >= until:
                raise self._is_used_by(str(pids[0]))
            time.sleep(POLL_SECONDS)

    def _is_used_by(self, owner: str) -> ClusterFailed:
        return ClusterFailed(
            f"another controller, process {owner}, uses the folder {self._folder}; "
            "a fleet has one controller, so stop that one or use another folder"
        )

    # -- one replica -----------------------------------------------------------------------------------------------

    def path(self, replica_id: str) -> Path:
        """Return the folder of a replica."""
        return self._replicas / replica_id

    def create(self) -> str:
        """Create the folder of a new replica, and return its id."""
        while True:
            replica_id = f"{ID_PREFIX}{secrets.token_hex(5)}"
            try:
                self.path(replica_id).mkdir(mode=0o700, parents=True)
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

    def is_locked(self, replica_id: str) -> bool | None:
        """Return whether the process of a replica runs; None if that is not known, because the lock's file is gone."""
        try:
            lock = os.open(self.path(replica_id) / LOCK_FILE, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            return not _try_lock(lock)
        finally:
            os.close(lock)

    def removed_locks(self) -> dict[str, int]:
        """Return the replicas whose process holds a lock that was removed, with their process ids."""
        return {
            path.parent.name: pid for pid, path in holders_of_removed(self._replicas)
            if path.name == LOCK_FILE and pid != os.getpid() and is_session_leader(pid)
        }  # fmt: skip

    def pid(self, replica_id: str) -> int | None:
        """Return the process id that replica_exec_main noted; None before that."""
        try:
            pid = int((self.path(replica_id) / PID_FILE).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None
        return pid if pid > 1 else None

    def write(self, record: ProcessRecord) -> None:
        """Replace the record of a replica: a reader sees the old one or the new one.

        The replica's folder is made again if it was removed, with the process id that replica_exec_main noted.
        """
        path = self.path(record.replica_id)
        try:
            write_private(path / RECORD_FILE, record.to_json())
        except FileNotFoundError:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if record.pid:
                write_private(path / PID_FILE, str(record.pid))
            write_private(path / RECORD_FILE, record.to_json())

    def has_record(self, replica_id: str) -> bool:
        """Return whether the file of a replica's record is there."""
        return (self.path(replica_id) / RECORD_FILE).exists()

    def records(self) -> Iterator[tuple[str, ProcessRecord | None]]:
        """Yield the id and the record of each replica; None for a record that is missing or cannot be read.

        Files, and folders that no fleet has made, are left alone.
        """
        for path in sorted(self._replicas.iterdir()):
            if not path.name.startswith(ID_PREFIX) or not path.is_dir():
                continue
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


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
