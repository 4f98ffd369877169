"""Script in front of a replica's command: notes its process id, sets its CPUs, and becomes the command.

Runs as a script before the command, `python -I -S replica_exec_main.py FOLDER CPUS COMMAND...`, in the process that the
command keeps, and imports the standard library only. Its process has inherited the descriptor of the replica's lock,
so the note is right as long as the lock is held, also when the controller was killed before it knew the process id.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

PID_FILE = "pid"
NOT_EXECUTABLE = 127
"""Exit code when the command cannot be run, as in shells."""


def main(arguments: Sequence[str]) -> int:
    """Become the command of the arguments; returns an exit code only if that is impossible."""
    folder, cpus, *command = arguments
    path = os.path.join(folder, PID_FILE)
    with open(f"{path}.new", "w", encoding="ascii", opener=_open_private) as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.new", path)
    if cpus and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # these processors have been taken away; the replica runs on all others
            os.sched_setaffinity(0, map(int, cpus.split(",")))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error}\n")
        return NOT_EXECUTABLE


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
