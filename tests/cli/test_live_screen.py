"""LiveScreen: what it draws, what ends its wait, and the terminal's mode before, in and behind it."""

import errno
import os
import select
import signal
import termios
import tty
from collections.abc import Iterator
from typing import Any, TextIO

import pytest

from chairlift.cli.live_screen import DEFAULT_SIZE, RESTORE, SHOW, LiveScreen


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, TextIO]]:
    """Yield the master of a pseudo terminal, which is the standard input, and the file that writes to it."""
    master, device = os.openpty()
    with os.fdopen(os.dup(device), "w", encoding="utf-8") as file, os.fdopen(device, encoding="utf-8") as keyboard:
        monkeypatch.setattr("sys.stdin", keyboard)
        yield master, file
    os.close(master)


def is_canonical(file: TextIO) -> bool:
    return bool(termios.tcgetattr(file.fileno())[3] & termios.ICANON)


def written(master: int) -> str:
    text = b""
    while select.select([master], [], [], 0)[0]:
        text += os.read(master, 65536)
    return text.decode()


def test_a_screen_is_drawn_and_given_back(terminal: tuple[int, TextIO]) -> None:
    master, file = terminal
    handler = signal.getsignal(signal.SIGINT)
    with LiveScreen(file) as screen:
        assert not is_canonical(file) and written(master) == SHOW
        screen.draw(["a", "b"])
        assert written(master) == "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J"
        assert screen.size() == DEFAULT_SIZE  # this terminal says none
    assert is_canonical(file) and written(master) == RESTORE and signal.getsignal(signal.SIGINT) is handler
    screen.close()


def test_keys_signals_and_other_threads_end_the_wait(terminal: tuple[int, TextIO]) -> None:
    master, file = terminal
    with LiveScreen(file) as screen:
        os.write(master, b"xq")
        assert screen.wait() == "xq"
        screen.wake()
        assert screen.wait() == ""
        signal.raise_signal(signal.SIGWINCH)
        assert screen.wait() == "" and not screen.is_interrupted
        signal.raise_signal(signal.SIGINT)
        assert screen.wait() == "" and screen.is_interrupted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    screen.close()


def test_the_terminal_is_given_back_while_ctrl_z_stops_the_process(
    terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, file = terminal
    stops: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: stops.append((pid, number, is_canonical(file))))
    with LiveScreen(file) as screen:
        signal.raise_signal(signal.SIGTSTP)
        assert screen.wait() == "" and stops == [(os.getpid(), signal.SIGSTOP, True)] and not is_canonical(file)
    assert written(master) == SHOW + RESTORE + SHOW + RESTORE
    screen.close()


def test_an_interrupted_wait_for_the_terminal_shows_nothing_and_restores_nothing(
    terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A background job waits in setcbreak(); a signal ends the call with EINTR."""
    master, file = terminal

    def end_with_signal(_: int) -> None:
        signal.raise_signal(signal.SIGINT)
        raise termios.error(errno.EINTR, "Interrupted system call")

    monkeypatch.setattr(tty, "setcbreak", end_with_signal)
    with LiveScreen(file) as screen:
        assert screen.is_interrupted
    assert written(master) == ""
    screen.close()


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGHUP])
def test_a_signal_that_ends_the_process_restores_the_terminal_first(
    terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    master, file = terminal
    ends: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda pid, sent: ends.append((sent, is_canonical(file), signal.getsignal(sent))))
    with LiveScreen(file) as screen:
        assert callable(signal.getsignal(number)), "without a handler the signal would end this process"
        signal.raise_signal(number)
        assert ends == [(number, True, signal.SIG_DFL)] and written(master) == SHOW + RESTORE
    screen.close()
