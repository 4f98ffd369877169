"""Which process it is: ids of processes are used again, so an id alone proves nothing once its process has ended.

The time of its start tells a process from a later one with the same id, and an environment variable tells the children
of a replica from other processes. Both are read from /proc; where there is none, nothing is known and nothing is done.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from chairlift.core.host.system_files import PROC, read_stat

REPLICA_VARIABLE = "CHAIRLIFT_LOCAL_REPLICA"
"""Environment variable of a replica's process with its id, which its children inherit."""

REMOVED = " (deleted)"
"""What the system appends to the path of an open file that was removed."""

_STATE, _SESSION, _START = 0, 3, 19
"""Places of the fields in /proc/PID/stat after the name of the program."""


def start_ticks(pid: int) -> int:
    """Return when a process was started, in clock ticks since the start of the system; 0 if it does not run."""
    fields = read_stat(PROC / str(pid))
    return 0 if fields[_STATE : _STATE + 1] in ([], ["Z"], ["X"]) else int(fields[_START])


def is_same_process(pid: int, ticks: int) -> bool:
    """Return whether the process that was started at this time still runs."""
    return ticks > 0 and start_ticks(pid) == ticks


def kill_session(session: int, replica_id: str) -> int:
    """Send SIGKILL to the children that a replica has left in its session; returns how many there were."""
    return sum(_kill_member(pid, session, replica_id) for pid in _pids() if _is_member(pid, session, replica_id))


def holders_of_removed(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the process id and the path of each file of a folder that is open although it was removed."""
    prefix = f"{os.path.realpath(folder)}/"
    for pid in _pids():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for entry in os.scandir(PROC / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(entry.path)
                    if target.startswith(prefix) and target.endswith(REMOVED):
                        yield pid, Path(target.removesuffix(REMOVED))


def is_session_leader(pid: int) -> bool:
    """Return whether a process leads its session, as that of a replica does."""
    fields = read_stat(PROC / str(pid))
    return bool(fields) and int(fields[_SESSION]) == pid


def _kill_member(pid: int, session: int, replica_id: str) -> bool:
    """Kill a process that a descriptor holds while it is checked again, so that no other one is hit."""
    with contextlib.suppress(AttributeError, OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if _is_member(pid, session, replica_id):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False


def _is_member(pid: int, session: int, replica_id: str) -> bool:
    fields = read_stat(PROC / str(pid))
    if not fields or int(fields[_SESSION]) != session:
        return False
    try:
        environ = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{REPLICA_VARIABLE}={replica_id}".encode() in environ


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(PROC) if name.isdecimal()]
    except OSError:
        return []
