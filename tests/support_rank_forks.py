"""Ranks that are forked from one process which has imported torch: each starts in milliseconds instead of seconds.

use_forked_ranks(monkeypatch)   in this test, rank 0 starts its other ranks so
python -c "..." DESCRIPTOR      the process that forks: for each byte on its socket, with two pipes, it starts a rank
"""

import atexit
import contextlib
import functools
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from support_process import TESTS, TIMEOUT_SECONDS, child_environment

RANK_MAIN = "chairlift.model.distributed.rank_main"
COMMAND = ("-c", "import sys, support_rank_forks; support_rank_forks.serve(int(sys.argv[1]))")


def serve(descriptor: int) -> None:
    """Start ranks and report their ends, until the other end of the socket closes."""
    __import__(RANK_MAIN)
    control = socket.socket(fileno=descriptor)
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    control.sendall(b"ready 0\n")
    while True:
        ready, _, _ = select.select([control, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
            _report_ends(control)
        if control not in ready:
            continue
        message, pipes, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            return
        if (pid := os.fork()) == 0:
            _run_rank(pipes, (control.detach(), wakes, wake))
        for pipe in pipes:
            os.close(pipe)
        control.sendall(b"start %d\n" % pid)


def _report_ends(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.sendall(b"end %d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def _run_rank(pipes: list[int], unused: tuple[int, ...]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
    for descriptor in (*pipes, *unused):
        os.close(descriptor)
    try:
        runpy.run_module(RANK_MAIN, run_name="__main__", alter_sys=True)
    finally:
        os._exit(1)


class Forks:
    """The process that forks ranks, and the ranks that have ended."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, *COMMAND, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env=child_environment(), cwd=TESTS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        self._changed = threading.Condition()
        self._started: list[int] = []
        self._codes: dict[int, int] = {}
        threading.Thread(target=self._read, name="forks", daemon=True).start()
        atexit.register(self.close)

    def _read(self) -> None:
        for line in self._control.makefile("r"):
            kind, *numbers = line.split()
            with self._changed:
                if kind == "start":
                    self._started.append(int(numbers[0]))
                elif kind == "end":
                    self._codes[int(numbers[0])] = int(numbers[1])
                self._changed.notify_all()

    def popen(self, command: Any, **_: Any) -> "ForkedRank":
        """Start a rank, as subprocess.Popen does."""
        (their_input, our_input), (our_output, their_output) = os.pipe(), os.pipe()
        with self._changed:
            socket.send_fds(self._control, [b"x"], [their_input, their_output])
            assert self._changed.wait_for(lambda: self._started, TIMEOUT_SECONDS)
            pid = self._started.pop()
        os.close(their_input)
        os.close(their_output)
        return ForkedRank(self, pid, our_input, our_output)

    def code(self, pid: int, seconds: float | None) -> int | None:
        """Return the exit code of a rank, None if it has not ended after the seconds."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._codes, seconds)
            return self._codes.get(pid)

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait(TIMEOUT_SECONDS)


class ForkedRank:
    """A subprocess.Popen of a forked rank, as far as RankProcess uses one."""

    def __init__(self, forks: Forks, pid: int, our_input: int, our_output: int) -> None:
        self._forks, self.pid = forks, pid
        self.stdin, self.stdout = os.fdopen(our_input, "wb", 0), os.fdopen(our_output, "rb", 0)

    def poll(self) -> int | None:
        return self._forks.code(self.pid, 0.0)

    def wait(self, timeout: float) -> int:
        if (code := self._forks.code(self.pid, timeout)) is None:
            raise subprocess.TimeoutExpired("a rank", timeout)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


@functools.cache
def forks() -> Forks:
    """Return the process that forks, which lives as long as this one."""
    return Forks()


def use_forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the ranks that this process starts."""
    replaced = SimpleNamespace(Popen=forks().popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("chairlift.model.distributed.rank_process.subprocess", replaced)
