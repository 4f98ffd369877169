"""A process that compiles a grammar before the engine does: it may hang, eat memory or crash there, and is killed.

    engine ──► vocabulary, vocab_size           once
           ◄── ready
           ──► StructuredOutput                 ──► source_of ─► compile ─► first mask
           ◄── its source, or why it cannot be; nothing at all: it hung or crashed

The compiler is a native library: a chain of three thousand rules overflows its stack, and a multipleOf of 999,983
keeps it busy for ten seconds, whatever its limits say. Frames are msgpack behind their length, in four bytes.
"""

import os
import resource
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np

from chairlift.core.errors import EngineDead, InvalidRequest, StructureFailed
from chairlift.core.structured import StructuredOutput
from chairlift.engine.structure.grammar import BITS, said
from chairlift.engine.structure.sources import make_matcher, make_tokenizer, source_of
from chairlift.engine.structure.vocabulary import Vocabulary

COMMAND = ("-P", "-m", "chairlift.engine.structure.checker")
LENGTH_BYTES = 4
LIMIT_SECONDS = 0.8
"""For one grammar; an answer is to be there within a second."""

START_SECONDS = 60.0
READY = b"ready"
CRASHED = b""
"""In place of a frame, which is never empty."""

STACK_BYTES = 1 << 20
"""Of the thread that judges: less than any thread of the engine has, so that what fits here fits there."""

EXTRA_BYTES = 1 << 30
"""Address space that a grammar may take besides what the process has when it is ready."""


class Killed(Exception):
    """The process did not live through a grammar: by the grammar's fault, or because the machine had no time for it."""


class Begin(NamedTuple):
    """The first message."""

    vocabulary: Vocabulary
    vocab_size: int


class Verdict(NamedTuple):
    """What came of a grammar: its source, or what is wrong with it."""

    source: str = ""
    error: str = ""


class Checker:
    """The engine's end: one process, started when it is needed and again after it was killed. For one thread."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._begin = msgspec.msgpack.encode(Begin(vocabulary, vocab_size))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._closed = threading.Event()

    def check(self, structured: StructuredOutput) -> str:
        """Return the source of a grammar that compiles within the limits.

        Raises InvalidRequest for one that means nothing, Killed for one that the process did not live through.
        """
        process = self._ready()
        _send(process, msgspec.msgpack.encode(structured))
        frame = _received(process, LIMIT_SECONDS)
        if not frame:
            self.kill()
            why = f"it takes longer than {LIMIT_SECONDS:g} s" if frame is None else "the compiler cannot cope with it"
            raise Killed(f"structured.{structured.kind} cannot be compiled: {why}")
        verdict = msgspec.msgpack.decode(frame, type=Verdict)
        if verdict.error:
            raise InvalidRequest(f"structured.{structured.kind}: {verdict.error}", param="structured")
        return verdict.source

    def start(self) -> None:
        """Have the process there; returns before it is ready, and before it was told anything."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # somebody else has ended it
        if self._process is None and not self._closed.is_set():
            self._is_ready = False
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                start_new_session=True,  # Ctrl-C is not for it
            )  # fmt: skip
            if self._closed.is_set():
                self._process.kill()

    def kill(self) -> None:
        """End the process and wait until it is gone; the next check starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def close(self) -> None:
        """End the process for good; from any thread."""
        self._closed.set()
        process = self._process
        if process is not None:
            process.kill()

    def _ready(self) -> "subprocess.Popen[bytes]":
        self.start()
        process = self._process
        if process is None or self._closed.is_set():
            raise EngineDead("the engine is closed")
        if not self._is_ready:
            _send(process, self._begin)
            if _received(process, START_SECONDS) != READY:
                self.kill()
                raise StructureFailed("the process that checks grammars does not start")
            self._is_ready = True
        return process


def _send(process: "subprocess.Popen[bytes]", frame: bytes) -> None:
    assert process.stdin is not None
    left = memoryview(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
    with suppress(BrokenPipeError):  # it died; no answer will say so
        while left:
            left = left[os.write(process.stdin.fileno(), left) :]


def _received(process: "subprocess.Popen[bytes]", seconds: float) -> bytes | None:
    """Read one frame; None when none comes in time, CRASHED when none ever will."""
    assert process.stdout is not None
    until, parts, wanted = time.monotonic() + seconds, bytearray(), LENGTH_BYTES
    readable = select.poll()
    readable.register(process.stdout, select.POLLIN)
    while len(parts) < wanted:
        left = until - time.monotonic()
        if left <= 0 or not readable.poll(left * 1000):
            return None
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            return CRASHED
        parts += part
        if len(parts) >= LENGTH_BYTES:
            wanted = LENGTH_BYTES + int.from_bytes(parts[:LENGTH_BYTES], "big")
    return bytes(parts[LENGTH_BYTES:])


# -- the process itself ------------------------------------------------------------------------------------------------


class _Watchdog:
    """Ends this process when a grammar takes too long and nobody is left to kill it."""

    def __init__(self) -> None:
        self.began: float | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(LIMIT_SECONDS)
            if (began := self.began) is not None and time.monotonic() - began > 2 * LIMIT_SECONDS:
                os._exit(3)


def _judge(structured: StructuredOutput, tokenizer: object, width: int) -> Verdict:
    try:
        source = source_of(structured)
        matcher = make_matcher(source, tokenizer)  # type: ignore[arg-type]
    except ValueError as error:
        return Verdict(error=said(str(error)))
    mask = np.zeros(width, np.int32)
    if not matcher.is_error() and not matcher.is_stopped():
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error():
        return Verdict(error=said(matcher.get_error()))
    return Verdict(source=source)


def main() -> int:
    """Answer until standard input ends; returns the exit code."""
    source, target = sys.stdin.buffer, os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    begin = msgspec.msgpack.decode(_read(source), type=Begin)
    tokenizer = make_tokenizer(begin.vocabulary, begin.vocab_size)
    width = -(-tokenizer.vocab_size // BITS)
    _bound()
    watchdog = _Watchdog()
    threading.stack_size(STACK_BYTES)
    judge = ThreadPoolExecutor(1)
    os.write(target, len(READY).to_bytes(LENGTH_BYTES, "big") + READY)
    while frame := _read(source):
        watchdog.began = time.monotonic()
        structured = msgspec.msgpack.decode(frame, type=StructuredOutput)
        answer = msgspec.msgpack.encode(judge.submit(_judge, structured, tokenizer, width).result())
        watchdog.began = None
        left = memoryview(len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
        while left:
            left = left[os.write(target, left) :]
    return 0


def _bound() -> None:
    """No core files, and no more memory than a grammar may take."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # a system without /proc
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_BYTES, used + EXTRA_BYTES))


def _read(source: IO[bytes]) -> bytes:
    """Read one frame; empty at the end."""
    length = source.read(LENGTH_BYTES)
    return source.read(int.from_bytes(length, "big")) if len(length) == LENGTH_BYTES else b""


if __name__ == "__main__":
    sys.exit(main())
