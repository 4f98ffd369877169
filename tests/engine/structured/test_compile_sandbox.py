"""CompileSandbox: a grammar that hangs, uses too much memory or crashes the compiler fails alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from chairlift.core.errors import EngineDead, InvalidRequest, StructuredOutputFailed
from chairlift.core.host.process_activity import cpu_seconds
from chairlift.core.structured_output import ReasoningPrefix, StructuredOutput
from chairlift.engine.structured.compile_sandbox import (
    COMMAND,
    COMPILE_TIMEOUT_SECONDS,
    MAX_CPU_SECONDS,
    READY,
    SANDBOX_GRACE_SECONDS,
    TIMED_OUT,
    CompileSandbox,
    SandboxKilled,
    _compile,
    _Compiler,
    _send,
)
from chairlift.engine.structured.llguidance_adapter import make_tokenizer
from chairlift.engine.structured.sandbox_frames import LENGTH_BYTES
from support_grammars import VOCAB_SIZE, VOCABULARY
from support_process import TIMEOUT_SECONDS, has_ended, wait_until

CRASHES = StructuredOutput(
    grammar="start: r0\n" + "\n".join(f'r{i}: r{i + 1} r{i + 1} | "x{i}"' for i in range(3000)) + '\nr3000: "z"'
)
HANGS = StructuredOutput(json_schema={"type": "integer", "multipleOf": 999_983})
COSTLY = StructuredOutput(json_schema={"type": "integer", "multipleOf": 30_001})
GOOD = StructuredOutput(regex="[0-9]+")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def only_fork(sandbox: CompileSandbox) -> int:
    process = sandbox._ready_process()
    wait_until(lambda: len(children(process.pid)) == 1)
    return children(process.pid)[0]


@pytest.fixture
def sandbox() -> Iterator[CompileSandbox]:
    created = CompileSandbox(VOCABULARY, VOCAB_SIZE)
    yield created
    created.kill()


@pytest.mark.full
def test_a_structure_beyond_the_limits_is_refused_behind_reasoning_too() -> None:
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(2600)}}
    compiler = _Compiler(make_tokenizer(VOCABULARY, VOCAB_SIZE), {})
    for prefix in (None, ReasoningPrefix(ends=("</think>",), is_open=True)):
        verdict = _compile(StructuredOutput(json_schema=many, reasoning_prefix=prefix), compiler)
        assert verdict.error.startswith("Parser Error: Current row has 10399 items"), verdict


def test_a_good_one_comes_back_as_its_source(sandbox: CompileSandbox) -> None:
    assert "[0-9]+" in sandbox.check(GOOD)
    process = sandbox._process
    assert "yes" in sandbox.check(StructuredOutput(choice=("yes", "no")))
    assert sandbox._process is process


@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("bad", "message"), [(CRASHES, "exceeds the memory or the stack|takes more than"), (HANGS, "takes more than")]
)
def test_what_kills_the_compiler_kills_nothing_else(
    sandbox: CompileSandbox, bad: StructuredOutput, message: str
) -> None:
    sandbox.check(GOOD)
    with pytest.raises(SandboxKilled, match=message) as caught:
        sandbox.check(bad)
    assert len(str(caught.value)) < 500
    assert sandbox.check(GOOD)


def test_a_good_one_is_not_refused_because_the_machine_is_busy(sandbox: CompileSandbox) -> None:
    """Its fork gets no CPU for longer than a grammar may take."""
    fork = only_fork(sandbox)
    os.kill(fork, signal.SIGSTOP)
    timer = threading.Timer(COMPILE_TIMEOUT_SECONDS + 0.3, os.kill, (fork, signal.SIGCONT))
    timer.start()
    assert "[0-9]+" in sandbox.check(GOOD)
    timer.join()


@pytest.mark.full
def test_a_good_one_may_take_longer_than_a_fork_may_be_idle(sandbox: CompileSandbox) -> None:
    """Other programs take the processors, and its fork runs now and then for a moment."""
    sandbox.check(GOOD)
    fork, result = only_fork(sandbox), []
    os.kill(fork, signal.SIGSTOP)
    check = threading.Thread(target=lambda: result.append(sandbox.check(COSTLY)))
    check.start()
    for _ in range(4):
        time.sleep(SANDBOX_GRACE_SECONDS / 3)
        before = cpu_seconds(fork)
        os.kill(fork, signal.SIGCONT)
        wait_until(lambda before=before: cpu_seconds(fork) > before)  # type: ignore[misc]
        os.kill(fork, signal.SIGSTOP)
    os.kill(fork, signal.SIGCONT)
    check.join()
    assert len(result) == 1


@pytest.mark.full
def test_a_grammar_takes_only_a_fork_with_it_so_that_the_next_one_does_not_wait_for_a_vocabulary(
    sandbox: CompileSandbox,
) -> None:
    sandbox.check(GOOD)
    process = sandbox._process
    assert process is not None
    for bad in (HANGS, CRASHES, HANGS):
        (fork,) = children(process.pid)
        with pytest.raises(SandboxKilled):
            sandbox.check(bad)
        assert sandbox.check(GOOD)
        assert fork not in children(process.pid) and len(children(process.pid)) == 1
    assert sandbox._process is process and process.poll() is None


@pytest.mark.share(1)
@pytest.mark.parametrize("ended", [False, True])
def test_no_process_of_it_is_left_when_it_is_ended_in_the_middle_of_a_grammar(
    sandbox: CompileSandbox, ended: bool
) -> None:
    """The fork also ends if only the sandbox process was killed, which then cannot stop it."""
    process = sandbox._ready_process()
    (fork,) = children(process.pid)
    _send(process, msgspec.msgpack.encode(HANGS))
    time.sleep(0.2)
    sandbox.kill() if ended else process.kill()
    used = 0.0

    def ends() -> bool:
        nonlocal used
        used = max(used, cpu_seconds(fork) or 0.0)
        return has_ended(fork)

    wait_until(ends, 120)
    assert used < (1.5 if ended else MAX_CPU_SECONDS + 3), "to the end it computes for nine seconds"


@pytest.mark.full
def test_the_limit_of_processor_time_is_of_each_grammar_and_not_of_all(sandbox: CompileSandbox) -> None:
    fork = only_fork(sandbox)
    deadline, number, took = time.monotonic() + TIMEOUT_SECONDS, 0, 0.0
    while took < MAX_CPU_SECONDS + 1.5 and time.monotonic() < deadline:
        schema = {"enum": [f"{number} {value}" for value in range(3000)]}
        try:
            assert sandbox.check(StructuredOutput(json_schema=schema))
        except SandboxKilled as error:  # after a pause of the machine, another fork starts
            if TIMED_OUT not in str(error):
                raise
            fork, number = only_fork(sandbox), 0
        number, took = number + 1, cpu_seconds(fork) or 0.0
    assert took >= MAX_CPU_SECONDS + 1.5 and number > 3
    assert only_fork(sandbox) == fork


@pytest.mark.full
def test_a_process_that_another_process_ended_is_replaced(sandbox: CompileSandbox) -> None:
    sandbox.check(GOOD)
    assert sandbox._process is not None
    os.kill(sandbox._process.pid, signal.SIGKILL)
    sandbox._process.wait()
    assert sandbox.check(GOOD)


@pytest.mark.full
def test_a_fork_that_another_process_ended_is_no_error_of_the_grammar(sandbox: CompileSandbox) -> None:
    process = sandbox._ready_process()
    for _ in range(3):
        (fork,) = children(process.pid)
        os.kill(fork, signal.SIGKILL)
        wait_until(lambda fork=fork: has_ended(fork) and len(os.listdir(f"/proc/{fork}/task")) < 2)  # type: ignore[misc]
        assert sandbox.check(GOOD) and sandbox._process is process
    assert len(children(process.pid)) == 1


def test_a_grammar_that_no_process_can_check_is_no_invalid_grammar(
    sandbox: CompileSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []
    monkeypatch.setattr(
        "chairlift.engine.structured.compile_sandbox._receive",
        lambda process, seconds: READY if seconds > 30 else b"",
    )
    monkeypatch.setattr(
        CompileSandbox, "start", lambda self, start=CompileSandbox.start: (starts.append(1), start(self))[1]
    )
    with pytest.raises(StructuredOutputFailed, match="ended twice"):
        sandbox.check(GOOD)
    assert len(starts) == 2


@pytest.mark.full
def test_a_reply_that_was_not_read_does_not_reach_the_next_call(
    sandbox: CompileSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(process: object, seconds: float) -> bytes:
        raise MemoryError

    sandbox.check(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr("chairlift.engine.structured.compile_sandbox._receive", no_memory)
        with pytest.raises(MemoryError):
            sandbox.check(StructuredOutput(regex="first"))
    assert "second" in sandbox.check(StructuredOutput(regex="second"))


def test_ctrl_c_of_a_terminal_does_not_reach_it(sandbox: CompileSandbox) -> None:
    sandbox.start()
    assert sandbox._process is not None
    assert os.getpgid(sandbox._process.pid) != os.getpgid(0)


def test_one_that_means_nothing_says_why(sandbox: CompileSandbox) -> None:
    with pytest.raises(InvalidRequest, match=r"structured\.regex: .*unclosed group"):
        sandbox.check(StructuredOutput(regex="(("))
    with pytest.raises(InvalidRequest, match=r"structured\.json_schema: .*banana"):
        sandbox.check(StructuredOutput(json_schema={"type": "banana"}))
    with pytest.raises(InvalidRequest, match=r"structured\.json_schema: no output can follow it"):
        sandbox.check(StructuredOutput(json_schema={"$ref": "#"}))


def test_one_whose_first_mask_is_too_costly_is_refused(sandbox: CompileSandbox) -> None:
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(20_000)}}
    with pytest.raises(InvalidRequest):
        sandbox.check(StructuredOutput(json_schema=many))


def test_a_closed_sandbox_starts_no_process() -> None:
    sandbox = CompileSandbox(VOCABULARY, VOCAB_SIZE)
    sandbox.close()
    with pytest.raises(EngineDead):
        sandbox.check(GOOD)


@pytest.mark.full
def test_a_process_whose_owner_is_gone_leaves() -> None:
    process = subprocess.Popen([sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    sandbox = CompileSandbox(VOCABULARY, VOCAB_SIZE)
    _send(process, sandbox._init_frame)
    assert process.stdout.read(LENGTH_BYTES + len(READY)).endswith(READY)
    process.stdin.close()
    assert process.wait(10) == 0
    process.stdout.close()


@pytest.mark.full
def test_a_process_that_is_busy_with_a_grammar_leaves_too_when_its_owner_dies() -> None:
    code = f"""
import os, sys
sys.path[:0] = {[os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../..")]!r}
from test_compile_sandbox import CompileSandbox, HANGS, VOCAB_SIZE, VOCABULARY, _send
import msgspec
sandbox = CompileSandbox(VOCABULARY, VOCAB_SIZE)
process = sandbox._ready_process()
_send(process, msgspec.msgpack.encode(HANGS))
print(process.pid, flush=True)
os._exit(0)
"""
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    wait_until(lambda: has_ended(pid))
