"""describe_end: says how a child process ended, and what to do where the system killed it."""

import signal


def describe_end(exit_code: int) -> str:
    """Return how a process ended, for a message that begins with its name; minus a signal's number names the signal.

    On Linux the kernel kills a process when the machine, or the process's cgroup, has no memory left.
    """
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return "was killed, probably for lack of memory; lower --max-memory"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-exit_code} ({name})"
