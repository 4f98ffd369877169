"""blocked_interrupt: a child lives through Ctrl-C, and this process gets it when the block has ended."""

import signal
import subprocess
import sys
import threading

import pytest

from chairlift.core.host.blocked_interrupt import blocked_interrupt


def test_a_child_never_gets_it_and_this_process_gets_it_later() -> None:
    with blocked_interrupt():
        child = subprocess.Popen([sys.executable, "-c", "print(input())"], stdin=-1, stdout=-1, text=True)
    child.send_signal(signal.SIGINT)
    assert child.communicate("alive\n", timeout=60)[0] == "alive\n" and child.returncode == 0
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupt_within(lines)
    assert lines == ["sent"] and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def interrupt_within(lines: list[str]) -> None:
    with blocked_interrupt():
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # a process's signal goes to any of its threads
        lines.append("sent")
