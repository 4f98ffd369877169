"""Starts a program that dies with its parent: `python -m chairlift.cluster.ray.exit_with_parent PROGRAM ARGUMENT...`.

The kernel sends SIGKILL to the program when the thread that started this process ends, in whatever way. So a replica
ends with its actor, even where Ray kills the actor's process, and no replica uses a GPU that Ray gives to another one.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
PARENT = "CHAIRLIFT_PARENT_PID"
"""Variable with the process id of the parent, which may have died before this process asked for the signal."""


def main(command: Sequence[str]) -> int:
    """Become the program; returns only where that fails, with the exit code."""
    parent = os.environ.pop(PARENT, "")
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent and parent != str(os.getppid()):
        sys.stderr.write("the parent process has ended\n")
        return 1
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ray's workers ignore it, and so would the program
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
