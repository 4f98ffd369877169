"""CompileSandbox: compiles each grammar in a separate process first, which may hang or crash.

    engine ──► SandboxInit                      once
           ◄── READY
           ──► StructuredOutput  ──► fork ──► source_of ─► compile ─► first masks
           ◄── CompileVerdict           └── killed after COMPILE_TIMEOUT_SECONDS; the next grammar gets a new fork

The compiler is a native library: a chain of three thousand rules overflows its stack, and a multipleOf of 999,983
keeps it busy for ten seconds, in spite of its limits. Building the tokenizer takes up to a second, forking a process
that has it takes milliseconds. Processor time limits a compilation, because on a busy machine it may take many seconds.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec
import numpy as np

from chairlift.core.errors import EngineDead, InvalidRequest, StructuredOutputFailed
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar_matcher import BITS, exceeded_limit, short_message
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.largest_schema_part import describe_size
from chairlift.engine.structured.llguidance_adapter import make_matcher, make_tokenizer, source_of, special_token_ids
from chairlift.engine.structured.process_time_limit import ProcessTimeLimit
from chairlift.engine.structured.sandbox_frames import read_frame, receive_frame, write_frame

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

COMMAND = ("-P", "-m", "chairlift.engine.structured.compile_sandbox")
COMPILE_TIMEOUT_SECONDS = 0.8
"""CPU time of a fork for one grammar, so that on an idle machine the client gets its response within a second."""

SANDBOX_GRACE_SECONDS = 5.0
"""Longest time in which a fork uses no processor, and how much longer the engine gives the sandbox process.

Other programs may delay either of them for any time, as long as it runs now and then.
"""

MAX_CPU_SECONDS = 2
"""CPU time of one grammar. It ends a fork whose parent process is gone."""

FOLLOWED_TOKENS = 16
"""Tokens of an output that are tried: an object with many properties is costly behind its brace, not at its start."""

FOLLOWED_OBJECT_TOKENS = 4
"""The same behind the brace of an object, if the first output is none and the grammar allows one."""

START_TIMEOUT_SECONDS = 60.0
"""Processor time in which the sandbox process is ready, and longest time in which it uses none."""

TIMED_OUT = f"it takes more than {COMPILE_TIMEOUT_SECONDS:g} s of processor time"
CRASHED = "it exceeds the memory or the stack of the compiler"
POSITION = re.compile(r"^at \d+\(\d+\): ")  # place of an error in the grammar that a schema is converted to

READY = b"ready"

COMPILE_STACK_BYTES = 1 << 20
"""Stack of the compiling thread: less than any thread of the engine has, so a grammar that fits here fits there."""

MAX_EXTRA_MEMORY_BYTES = 1 << 30
"""Address space that a grammar may take in addition to what its fork already uses."""


class SandboxKilled(Exception):
    """The compilation of a grammar crashed or timed out; a busy machine can be the reason."""


class SandboxInit(NamedTuple):
    """The first message to the sandbox process."""

    vocabulary: GrammarTokenizer
    vocab_size: int


class CompileVerdict(NamedTuple):
    """The result of one compilation: the grammar's source, its error, or how the fork ended.

    Attributes:
        source: llguidance source of a grammar that compiles.
        error: why the grammar is invalid.
        failure: TIMED_OUT or CRASHED.
    """

    source: str = ""
    error: str = ""
    failure: str = ""


class CompileSandbox:
    """The engine's side of a sandbox process, which starts on demand. Not thread-safe."""

    def __init__(self, vocabulary: GrammarTokenizer, vocab_size: int) -> None:
        self._init_frame = msgspec.msgpack.encode(SandboxInit(vocabulary, vocab_size))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._closed = threading.Event()

    def check(self, structured: StructuredOutput) -> str:
        """Return the source of a grammar that compiles within the limits.

        Raises InvalidRequest for an invalid grammar, SandboxKilled if its compilation crashes or times out,
        StructuredOutputFailed if there is no sandbox process.
        """
        # Twice: the process may have been ended by something else than this grammar.
        frame = self._call(structured) or self._call(structured)
        if not frame:
            raise StructuredOutputFailed("the process that checks grammars ended twice without a reply")
        verdict = msgspec.msgpack.decode(frame, type=CompileVerdict)
        if verdict.failure:
            raise SandboxKilled(
                f"structured.{structured.kind} cannot be compiled: {verdict.failure}; {describe_size(structured)}"
            )
        if limit := exceeded_limit(verdict.error):
            raise InvalidRequest(
                f"structured.{structured.kind} is too complex to follow ({limit}): {describe_size(structured)}",
                param="structured",
            )
        if verdict.error:
            reason = verdict.error if structured.kind == "grammar" else POSITION.sub("", verdict.error)
            raise InvalidRequest(f"structured.{structured.kind}: {reason}", param="structured")
        return verdict.source

    def _call(self, structured: StructuredOutput) -> bytes | None:
        """Return the reply. Without one in time, kill the process and return nothing."""
        process, frame = self._ready_process(), None
        try:
            _send(process, msgspec.msgpack.encode(structured))
            frame = _receive(process, COMPILE_TIMEOUT_SECONDS + SANDBOX_GRACE_SECONDS)
        finally:
            if not frame:
                self.kill()  # also because the next call must not get this call's reply
        return frame

    def start(self) -> None:
        """Start the process unless it runs. The first call sends SandboxInit and waits until it is ready."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # another process has ended it
        if self._process is None and not self._closed.is_set():
            self._is_ready = False
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                start_new_session=True,  # Ctrl-C does not reach it, and it is killed with its fork
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # a process that forks must have no threads
            )  # fmt: skip
            if self._closed.is_set():
                _kill_group(self._process)

    def kill(self) -> None:
        """Kill the process and wait for its end. The next check() starts another."""
        process, self._process = self._process, None
        if process is not None:
            _kill_group(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def close(self) -> None:
        """Kill the process and start no other. Safe to call from any thread."""
        self._closed.set()
        process = self._process
        if process is not None:
            _kill_group(process)

    def _ready_process(self) -> "subprocess.Popen[bytes]":
        self.start()
        process = self._process
        if process is None or self._closed.is_set():
            raise EngineDead("the engine is closed")
        if not self._is_ready:
            _send(process, self._init_frame)
            if _receive(process, START_TIMEOUT_SECONDS) != READY:
                self.kill()
                raise StructuredOutputFailed("the process that checks grammars does not start")
            self._is_ready = True
        return process


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and its fork."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _send(process: "subprocess.Popen[bytes]", frame: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the process has ended, which the missing reply shows
        write_frame(process.stdin.fileno(), frame)


def _receive(process: "subprocess.Popen[bytes]", seconds: float) -> bytes | None:
    """Return the next frame of the process, None if it computes or does nothing for `seconds`."""
    assert process.stdout is not None
    # While the process waits for its fork it looks at the limits of that one, which takes processor time, too.
    return receive_frame(
        process.stdout.fileno(), ProcessTimeLimit(process.pid, cpu_seconds=seconds, idle_seconds=seconds)
    )


# -- the sandbox process -----------------------------------------------------------------------------------------------


def main() -> int:
    """Reply to frames until standard input ends. Returns the exit code."""
    source, target = sys.stdin.buffer, os.dup(1)
    os.dup2(2, 1)  # a library's prints must not mix with the replies
    init = msgspec.msgpack.decode(read_frame(source), type=SandboxInit)
    compiler = _Compiler(
        make_tokenizer(init.vocabulary, init.vocab_size), special_token_ids(init.vocabulary.tokenizer_json)
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    fork = _Fork(compiler, (0, target))
    write_frame(target, READY)
    with suppress(BrokenPipeError):  # the engine has ended
        while frame := read_frame(source):
            if fork.has_ended():  # another process has killed it, not a grammar
                fork = _Fork(compiler, (0, target))
            reply = fork.call(frame)
            failure = TIMED_OUT if reply is None else CRASHED
            write_frame(target, reply or msgspec.msgpack.encode(CompileVerdict(failure=failure)))
            if not reply:
                fork.kill()
                fork = _Fork(compiler, (0, target))
    return 0


class _Fork:
    """A forked process that compiles grammars one after another, until one of them kills it."""

    def __init__(self, compiler: "_Compiler", parent_fds: tuple[int, ...]) -> None:
        """Fork. The fork closes `parent_fds`, and exits when the parent closes its end of the request pipe."""
        request_fd, self._request_fd = os.pipe()
        self._reply_fd, reply_fd = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            # With its own copy of the writing end open, the fork would never see the end of the pipe.
            for fd in (self._request_fd, self._reply_fd, *parent_fds):
                os.close(fd)
            _run_fork(compiler, request_fd, reply_fd)
        os.close(request_fd)
        os.close(reply_fd)

    def call(self, frame: bytes) -> bytes | None:
        """Return the verdict on a grammar. Returns None on a timeout, END_OF_STREAM after a crash."""
        limit = ProcessTimeLimit(self._pid, cpu_seconds=COMPILE_TIMEOUT_SECONDS, idle_seconds=SANDBOX_GRACE_SECONDS)
        with suppress(BrokenPipeError):
            write_frame(self._request_fd, frame)
        return receive_frame(self._reply_fd, limit)

    def has_ended(self) -> bool:
        """Return whether the fork has ended, and release its files then."""
        if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            return False
        self._close()
        return True

    def kill(self) -> None:
        """Kill the fork and wait for its end."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._close()

    def _close(self) -> None:
        os.close(self._request_fd)
        os.close(self._reply_fd)


def _run_fork(compiler: "_Compiler", request_fd: int, reply_fd: int) -> NoReturn:
    """Compile grammars until the request pipe ends; crash messages of the library go to /dev/null."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        threading.stack_size(COMPILE_STACK_BYTES)
        # Only threads have the stack size that was just set; the main thread keeps the process's.
        executor = ThreadPoolExecutor(1)
        source = os.fdopen(request_fd, "rb")
        while frame := read_frame(source):
            # Anew for each grammar, as limits count what the fork has used for all before.
            _limit_resources()
            structured = msgspec.msgpack.decode(frame, type=StructuredOutput)
            verdict = executor.submit(_compile, structured, compiler).result()
            write_frame(reply_fd, msgspec.msgpack.encode(verdict))
    finally:
        os._exit(0)


@dataclass(frozen=True, slots=True)
class _Compiler:
    """What a compilation needs: llguidance's tokenizer, and the ids of special tokens by name."""

    tokenizer: "LLTokenizer"
    special_ids: Mapping[str, int]


def _compile(structured: StructuredOutput, compiler: _Compiler) -> CompileVerdict:
    try:
        source = source_of(structured, compiler.special_ids)
        sources = [source]
        if structured.reasoning_prefix is not None:  # followed from its start, the grammar gives only reasoning
            sources.append(source_of(replace(structured, reasoning_prefix=None), compiler.special_ids))
        for each in sources:
            matcher = make_matcher(each, compiler.tokenizer)
            if error := _followed_error(matcher, compiler.tokenizer):
                return CompileVerdict(error=short_message(error))
    except ValueError as error:
        return CompileVerdict(error=short_message(str(error)))
    return CompileVerdict(source=source)


def _followed_error(matcher: "LLMatcher", tokenizer: "LLTokenizer") -> str:
    """Return the error that a grammar has within its first tokens, or within those of an object; "" for none."""
    followed, object_start = matcher.deep_copy(), tokenizer.tokenize_str("{")
    first_token = _follow(followed, tokenizer.vocab_size, FOLLOWED_TOKENS)
    if not followed.is_error() and [first_token] != object_start:  # an object is costlier than another value
        followed = matcher.deep_copy()
        if followed.try_consume_tokens(object_start) == len(object_start):
            _follow(followed, tokenizer.vocab_size, FOLLOWED_OBJECT_TOKENS)
    return str(followed.get_error()) if followed.is_error() else ""


def _follow(matcher: "LLMatcher", vocab_size: int, num_tokens: int) -> int | None:
    """Compute the first masks of one possible output, so that most grammars beyond LIMITS fail here, not in a step.

    Returns the first token.
    """
    first_token: int | None = None
    mask = np.zeros(-(-vocab_size // BITS), np.int32)
    for _ in range(num_tokens):
        if matcher.is_error() or matcher.is_stopped():
            break
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        words = np.flatnonzero(mask)
        if matcher.is_error() or not words.size:
            break
        word = int(mask[words[0]])
        token = int(words[0]) * BITS + ((word & -word).bit_length() - 1)
        first_token = token if first_token is None else first_token
        matcher.consume_token(token)
    return first_token


def _limit_resources() -> None:
    """Limit this process to the CPU time and memory of one grammar, beyond what it has used before."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower_limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + MAX_CPU_SECONDS)
    with suppress(OSError):  # a system without /proc
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _lower_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MAX_EXTRA_MEMORY_BYTES)


def _lower_limit(kind: int, amount: int) -> None:
    """Set a soft limit, unless the process's hard limit is lower."""
    _, hard_limit = resource.getrlimit(kind)
    if hard_limit == resource.RLIM_INFINITY or amount < hard_limit:
        resource.setrlimit(kind, (amount, hard_limit))


if __name__ == "__main__":
    sys.exit(main())
