"""The process of a replica: how it is started, signalled and reaped.

A process id may be used again by the system. `signal_process` therefore holds the process by a descriptor first and
checks afterwards that the replica's lock is held: then the id has belonged to the replica all the time.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from chairlift.cluster.local import replica_exec_main
from chairlift.cluster.local.private_files import open_private
from chairlift.cluster.local.state_folder import LOG_FILE

REAP_SECONDS = 0.2
"""Longest wait for the system to report the end of a child that has closed its files."""

POLL_SECONDS = 0.001


def spawn(folder: Path, lock: int, command: Sequence[str], environ: Mapping[str, str], cpus: Iterable[int]) -> int:
    """Start the process of a replica in a session of its own, and return its process id.

    Args:
        folder: folder of the replica, which gets its log and its process id.
        lock: locked descriptor that the process inherits.
        command: what replica_exec_main becomes.
        environ: the whole environment.
        cpus: CPUs that it is pinned to; empty for all.

    Raises OSError when it cannot be started.
    """
    with open(folder / LOG_FILE, "ab", opener=open_private) as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", replica_exec_main.__file__, str(folder), ",".join(map(str, cpus)), *command],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environ), pass_fds=(lock,),
            start_new_session=True,
        )  # fmt: skip
    process.returncode = 0  # it outlives this object, and `reap` waits for it by its id
    return process.pid


def signal_process(pid: int, number: signal.Signals, is_running: Callable[[], bool]) -> bool:
    """Send a signal to the process of a replica, SIGKILL to its children, too; return whether it still runs.

    Args:
        pid: process id that replica_exec_main noted.
        number: SIGTERM or SIGKILL.
        is_running: says whether the replica's lock is held.
    """
    descriptor = None
    with contextlib.suppress(AttributeError, OSError):  # another system, or one that does not permit it
        descriptor = os.pidfd_open(pid)
    try:
        if not is_running():
            return False
        if number is signal.SIGKILL:
            with contextlib.suppress(OSError):
                os.killpg(pid, number)
        with contextlib.suppress(ProcessLookupError):
            if descriptor is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)
        return True
    finally:
        if descriptor is not None:
            os.close(descriptor)


def reap(pid: int) -> tuple[bool, int | None]:
    """Reap a child whose lock is free, and kill what is left of its session.

    Returns:
        Whether it is gone, and its exit code, minus the signal's number for a signal; None if that is not known.
    """
    with contextlib.suppress(OSError):  # the child is not reaped yet, so the id is still that of its process group
        os.killpg(pid, signal.SIGKILL)
    until = time.monotonic() + REAP_SECONDS
    while True:
        try:
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # reaped by other code of this process
            return True, None
        if reaped:
            return True, os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return False, None
        time.sleep(POLL_SECONDS)
