"""LiveScreen: the whole terminal for a command that draws again and again and reads keys."""

import errno
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self, TextIO

SHOW = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Switch to the second screen, hide the cursor, and cut lines that are too long."""

DEFAULT_SIZE = os.terminal_size((80, 24))
"""Size of a terminal that does not say it."""

RESTORE = "\x1b[?7h\x1b[?25h\x1b[?1049l"


class LiveScreen:
    """Context that draws on the terminal's second screen; its end restores the screen, the cursor and the mode.

    Ctrl-C and SIGTERM do not raise KeyboardInterrupt in the block, so that nothing is left half done: they set
    `is_interrupted` and end `wait()`. A second one raises it, should the terminal be stuck. Ctrl-\\ and SIGHUP end the
    process, after the terminal is restored.

    Attributes:
        is_interrupted: whether Ctrl-C or SIGTERM came.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self.is_interrupted = False
        self._is_paused = self._is_shown = False
        self._file = file or sys.stdout
        self._keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._mode: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._wakes, self._wake = os.pipe()
        for descriptor in (self._wakes, self._wake):
            os.set_blocking(descriptor, False)

    def __enter__(self) -> Self:
        assert threading.current_thread() is threading.main_thread(), "only the main thread has signals"
        handlers = {
            signal.SIGINT: self._interrupt, signal.SIGWINCH: self._note, signal.SIGTSTP: self._note_pause,
            signal.SIGQUIT: self._end_process, signal.SIGHUP: self._end_process,
        }  # fmt: skip
        for number, handler in handlers.items():
            self._handlers[number] = signal.signal(number, handler)
        self._old_wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def size(self) -> os.terminal_size:
        """Return the columns and lines of the terminal now."""
        try:
            size = os.get_terminal_size(self._file.fileno())
        except OSError:
            return DEFAULT_SIZE
        return size if size.columns and size.lines else DEFAULT_SIZE

    def draw(self, lines: Sequence[str]) -> None:
        """Replace what is shown; `lines` must fit the terminal."""
        self._file.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines[:-1]))
        self._file.write("".join(f"{line}\x1b[K" for line in lines[-1:]) + "\x1b[J")
        self._file.flush()

    def wake(self) -> None:
        """End `wait()`; may be called in any thread."""
        with suppress(BlockingIOError):  # it will end anyway
            os.write(self._wake, b"\0")

    def wait(self) -> str:
        """Wait for keys, a signal such as that of a new size, or `wake()`; returns the keys."""
        watched = [self._wakes] if self._keyboard is None else [self._wakes, self._keyboard]
        ready, _, _ = select.select(watched, [], [])
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        if self._is_paused:
            self._pause()
        if self._keyboard not in ready or self._keyboard is None:
            return ""
        keys = os.read(self._keyboard, 4096)
        if not keys:  # the terminal is gone
            self.is_interrupted = True
        return keys.decode(errors="replace")

    def close(self) -> None:
        """Close what `wake()` uses, once no thread calls it any more."""
        for descriptor in (self._wakes, self._wake):
            os.close(descriptor)

    def _show(self) -> None:
        while self._keyboard is not None and not self.is_interrupted:
            try:
                self._mode = termios.tcgetattr(self._keyboard)
                tty.setcbreak(self._keyboard)  # stops a background job until it has the terminal
                break
            except termios.error as error:
                if error.args[0] != errno.EINTR:  # the signal of an interrupt, or of a new size
                    raise
        if not self.is_interrupted:
            self._is_shown = True
            self._file.write(SHOW)
            self._file.flush()

    def _restore(self) -> None:
        if not self._is_shown:
            return
        self._is_shown = False
        if self._keyboard is not None:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._mode)
        self._file.write(RESTORE)
        self._file.flush()

    def _end_process(self, number: int, frame: FrameType | None) -> None:
        """Restore the terminal, and end as without a handler."""
        signal.signal(number, signal.SIG_DFL)
        with suppress(OSError, termios.error):  # the terminal may be gone
            if self._is_shown and self._keyboard is not None:
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._mode)
            if self._is_shown:
                os.write(self._file.fileno(), RESTORE.encode())  # a write of the file may be interrupted
        os.kill(os.getpid(), number)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.is_interrupted = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Do nothing: the signal itself has ended `wait()`."""

    def _note_pause(self, number: int, frame: FrameType | None) -> None:
        self._is_paused = True

    def _pause(self) -> None:
        """Give the terminal back while Ctrl-Z stops this process."""
        self._is_paused = False
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._show()
