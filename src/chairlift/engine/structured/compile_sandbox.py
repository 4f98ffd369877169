"""A process that tries grammars out before the engine compiles them, in a fork of it, which may hang or crash.

    engine ──► vocabulary, vocab_size           once
           ◄── ready
           ──► StructuredOutput       ──► fork ──► source_of ─► compile ─► first mask
           ◄── its source, or why it cannot be      └── killed after LIMIT_SECONDS; the next grammar gets another

The compiler is a native library: a chain of three thousand rules overflows its stack, and a multipleOf of 999,983
keeps it busy for ten seconds, whatever its limits say. Making the vocabulary takes up to a second, forking what has it
milliseconds. Frames are msgpack behind their length, in four bytes.
"""

import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, NoReturn

import msgspec
import numpy as np

from chairlift.core.errors import EngineDead, InvalidRequest, StructuredOutputFailed
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar import BITS, short_message
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_source import make_matcher, make_tokenizer, source_of

if TYPE_CHECKING:
    from llguidance import LLTokenizer

COMMAND = ("-P", "-m", "chairlift.engine.structured.compile_sandbox")
LENGTH_BYTES = 4
LIMIT_SECONDS = 0.8
"""For one grammar; an answer is to be there within a second."""

PATIENCE_SECONDS = 5.0
"""For the process that forks, which only waits: beyond that it is killed itself."""

CPU_SECONDS = 2
"""For one grammar, in a fork that nobody is left to kill."""

START_SECONDS = 60.0
NO_TIME = f"it takes longer than {LIMIT_SECONDS:g} s"
NO_LIFE = "the compiler cannot cope with it"
READY = b"ready"
CRASHED = b""
"""In place of a frame, which is never empty."""

STACK_BYTES = 1 << 20
"""Of the thread that judges: less than any thread of the engine has, so that what fits here fits there."""

EXTRA_BYTES = 1 << 30
"""Address space that a grammar may take besides what the fork has when it begins."""


class SandboxKilled(Exception):
    """A grammar was not lived through: by its own fault, or because the machine had no time for it."""


class SandboxInit(NamedTuple):
    """The first message."""

    vocabulary: GrammarTokenizer
    vocab_size: int


class CompileVerdict(NamedTuple):
    """What came of a grammar: its source, what is wrong with it, or how the process ended that tried it."""

    source: str = ""
    error: str = ""
    end: str = ""


class CompileSandbox:
    """The engine's end: one process, started when it is needed and again when it is gone. For one thread."""

    def __init__(self, vocabulary: GrammarTokenizer, vocab_size: int) -> None:
        self._begin = msgspec.msgpack.encode(SandboxInit(vocabulary, vocab_size))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._closed = threading.Event()

    def check(self, structured: StructuredOutput) -> str:
        """Return the source of a grammar that compiles within the limits.

        Raises InvalidRequest for one that means nothing, Killed for one that was not lived through,
        StructuredOutputFailed
        where there is nobody to try it.
        """
        frame = self._asked(structured) or self._asked(structured)
        if not frame:
            raise StructuredOutputFailed("the process that checks grammars is gone")
        verdict = msgspec.msgpack.decode(frame, type=CompileVerdict)
        if verdict.end:
            raise SandboxKilled(f"structured.{structured.kind} cannot be compiled: {verdict.end}")
        if verdict.error:
            raise InvalidRequest(f"structured.{structured.kind}: {verdict.error}", param="structured")
        return verdict.source

    def _asked(self, structured: StructuredOutput) -> bytes | None:
        """Return the answer; None from a process that has none, which is ended."""
        process, frame = self._ready(), None
        try:
            _send(process, msgspec.msgpack.encode(structured))
            frame = _received(_out(process), LIMIT_SECONDS + PATIENCE_SECONDS)
        finally:
            if not frame:
                self.kill()  # also lest the next grammar gets this one's answer
        return frame

    def start(self) -> None:
        """Have the process there; returns before it is ready, and before it was told anything."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # somebody else has ended it
        if self._process is None and not self._closed.is_set():
            self._is_ready = False
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                start_new_session=True,  # Ctrl-C is not for it, and it is killed with its fork
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # no threads in what forks
            )  # fmt: skip
            if self._closed.is_set():
                _end(self._process)

    def kill(self) -> None:
        """End the process and wait until it is gone; the next check starts another."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def close(self) -> None:
        """End the process for good; from any thread."""
        self._closed.set()
        process = self._process
        if process is not None:
            _end(process)

    def _ready(self) -> "subprocess.Popen[bytes]":
        self.start()
        process = self._process
        if process is None or self._closed.is_set():
            raise EngineDead("the engine is closed")
        if not self._is_ready:
            _send(process, self._begin)
            if _received(_out(process), START_SECONDS) != READY:
                self.kill()
                raise StructuredOutputFailed("the process that checks grammars does not start")
            self._is_ready = True
        return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill it, and the fork it has."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _send(process: "subprocess.Popen[bytes]", frame: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it died; no answer will say so
        _write(process.stdin.fileno(), frame)


def _out(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None
    return process.stdout.fileno()


def _write(target: int, frame: bytes) -> None:
    left = memoryview(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
    while left:
        left = left[os.write(target, left) :]


def _received(source: int, seconds: float) -> bytes | None:
    """Read one frame; None when none comes in time, CRASHED when none ever will."""
    until, parts, wanted = time.monotonic() + seconds, bytearray(), LENGTH_BYTES
    readable = select.poll()
    readable.register(source, select.POLLIN)
    while len(parts) < wanted:
        left = until - time.monotonic()
        if left <= 0 or not readable.poll(left * 1000):
            return None
        part = os.read(source, 1 << 16)
        if not part:
            return CRASHED
        parts += part
        if len(parts) >= LENGTH_BYTES:
            wanted = LENGTH_BYTES + int.from_bytes(parts[:LENGTH_BYTES], "big")
    return bytes(parts[LENGTH_BYTES:])


# -- the process itself ------------------------------------------------------------------------------------------------


def main() -> int:
    """Answer until standard input ends; returns the exit code."""
    source, target = sys.stdin.buffer, os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    begin = msgspec.msgpack.decode(_read(source), type=SandboxInit)
    tokenizer = make_tokenizer(begin.vocabulary, begin.vocab_size)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    fork = _Fork(tokenizer, (0, target))
    _write(target, READY)
    with suppress(BrokenPipeError):  # nobody waits for the answer any more
        while frame := _read(source):
            if fork.has_ended():  # by somebody else: no grammar's fault
                fork = _Fork(tokenizer, (0, target))
            answer = fork.answer(frame)
            _write(target, answer or msgspec.msgpack.encode(CompileVerdict(end=NO_TIME if answer is None else NO_LIFE)))
            if not answer:
                fork.end()
                fork = _Fork(tokenizer, (0, target))
    return 0


class _Fork:
    """The process that tries grammars, one after another, until one of them ends it."""

    def __init__(self, tokenizer: "LLTokenizer", own: tuple[int, ...]) -> None:
        """Fork; the `own` files are not for the fork, which leaves when this end is closed."""
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            for file in (self._orders, self._answers, *own):
                os.close(file)
            _try(tokenizer, orders, answers)
        os.close(orders)
        os.close(answers)

    def answer(self, frame: bytes) -> bytes | None:
        """Return the verdict on a grammar; None when there is none in time, CRASHED when there never will be one."""
        with suppress(BrokenPipeError):
            _write(self._orders, frame)
        return _received(self._answers, LIMIT_SECONDS)

    def has_ended(self) -> bool:
        """Tell whether it is gone; then nothing is left of it."""
        if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            return False
        self._close()
        return True

    def end(self) -> None:
        """Kill it and wait until it is gone."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._close()

    def _close(self) -> None:
        os.close(self._orders)
        os.close(self._answers)


def _try(tokenizer: "LLTokenizer", orders: int, answers: int) -> NoReturn:
    """Judge grammars, as long as this process lives. What it complains of while it dies is not for the log."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        threading.stack_size(STACK_BYTES)
        judge = ThreadPoolExecutor(1)
        source = os.fdopen(orders, "rb")
        while frame := _read(source):
            _bound()
            structured = msgspec.msgpack.decode(frame, type=StructuredOutput)
            verdict = judge.submit(_judge, structured, tokenizer).result()
            _write(answers, msgspec.msgpack.encode(verdict))
    finally:
        os._exit(0)


def _judge(structured: StructuredOutput, tokenizer: "LLTokenizer") -> CompileVerdict:
    try:
        source = source_of(structured)
        matcher = make_matcher(source, tokenizer)
    except ValueError as error:
        return CompileVerdict(error=short_message(str(error)))
    mask = np.zeros(-(-tokenizer.vocab_size // BITS), np.int32)
    if not matcher.is_error() and not matcher.is_stopped():
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error():
        return CompileVerdict(error=short_message(matcher.get_error()))
    return CompileVerdict(source=source)


def _bound() -> None:
    """No more time and memory for this process than a grammar may take on top of what was taken before."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS)
    with suppress(OSError):  # a system without /proc
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + EXTRA_BYTES)


def _limit(kind: int, amount: int) -> None:
    """Set a limit that can be raised again, where the one that this process was given is not lower."""
    _, most = resource.getrlimit(kind)
    if most == resource.RLIM_INFINITY or amount < most:
        resource.setrlimit(kind, (amount, most))


def _read(source: IO[bytes]) -> bytes:
    """Read one frame; empty at the end."""
    length = source.read(LENGTH_BYTES)
    return source.read(int.from_bytes(length, "big")) if len(length) == LENGTH_BYTES else b""


if __name__ == "__main__":
    sys.exit(main())
