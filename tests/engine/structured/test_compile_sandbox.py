"""CompileSandbox: a grammar that hangs, uses too much memory or crashes the compiler fails alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from chairlift.core.errors import EngineDead, InvalidRequest, StructuredOutputFailed
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.compile_sandbox import (
    COMMAND,
    CPU_SECONDS,
    LENGTH_BYTES,
    NO_TIME,
    READY,
    CompileSandbox,
    SandboxKilled,
    _send,
)
from support_process import PATIENCE, is_gone, wait_until
from support_structure import VOCAB_SIZE, VOCABULARY

CRASHES = StructuredOutput(
    grammar="start: r0\n" + "\n".join(f'r{i}: r{i + 1} r{i + 1} | "x{i}"' for i in range(3000)) + '\nr3000: "z"'
)
HANGS = StructuredOutput(json_schema={"type": "integer", "multipleOf": 999_983})
GOOD = StructuredOutput(regex="[0-9]+")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def only_fork(checker: CompileSandbox) -> int:
    process = checker._ready()
    wait_until(lambda: len(children(process.pid)) == 1)
    return children(process.pid)[0]


def cpu_seconds(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def checker() -> Iterator[CompileSandbox]:
    made = CompileSandbox(VOCABULARY, VOCAB_SIZE)
    yield made
    made.kill()


def test_a_good_one_comes_back_as_its_source(checker: CompileSandbox) -> None:
    assert "[0-9]+" in checker.check(GOOD)
    process = checker._process
    assert "yes" in checker.check(StructuredOutput(choice=("yes", "no")))
    assert checker._process is process


@pytest.mark.parametrize(("bad", "message"), [(CRASHES, "cannot cope|takes longer than"), (HANGS, "takes longer than")])
def test_what_kills_the_compiler_kills_nothing_else(
    checker: CompileSandbox, bad: StructuredOutput, message: str
) -> None:
    checker.check(GOOD)
    with pytest.raises(SandboxKilled, match=message) as caught:
        checker.check(bad)
    assert len(str(caught.value)) < 500
    assert checker.check(GOOD)


def test_a_grammar_takes_only_a_fork_with_it_so_that_the_next_one_does_not_wait_for_a_vocabulary(
    checker: CompileSandbox,
) -> None:
    checker.check(GOOD)
    process = checker._process
    assert process is not None
    for bad in (HANGS, CRASHES, HANGS):
        (fork,) = children(process.pid)
        with pytest.raises(SandboxKilled):
            checker.check(bad)
        assert checker.check(GOOD)
        assert fork not in children(process.pid) and len(children(process.pid)) == 1
    assert checker._process is process and process.poll() is None


@pytest.mark.parametrize("ended", [False, True])
def test_no_process_of_it_is_left_when_it_is_ended_in_the_middle_of_a_grammar(
    checker: CompileSandbox, ended: bool
) -> None:
    """Also if only the process was killed, which then cannot stop its fork."""
    process = checker._ready()
    (fork,) = children(process.pid)
    _send(process, msgspec.msgpack.encode(HANGS))
    time.sleep(0.2)
    checker.kill() if ended else process.kill()
    wait_until(lambda: is_gone(fork), 1.5 if ended else CPU_SECONDS + 3)  # otherwise it takes nine seconds


def test_the_limit_of_processor_time_is_of_each_grammar_and_not_of_all(checker: CompileSandbox) -> None:
    fork = only_fork(checker)
    until, number, took = time.monotonic() + PATIENCE, 0, 0.0
    while took < CPU_SECONDS + 1.5 and time.monotonic() < until:
        schema = {"enum": [f"{number} {value}" for value in range(3000)]}
        try:
            assert checker.check(StructuredOutput(json_schema=schema))
        except SandboxKilled as error:  # after a pause of the machine, another fork starts
            if NO_TIME not in str(error):
                raise
            fork, number = only_fork(checker), 0
        number, took = number + 1, cpu_seconds(fork)
    assert took >= CPU_SECONDS + 1.5 and number > 3
    assert only_fork(checker) == fork


def test_a_process_that_another_process_ended_is_replaced(checker: CompileSandbox) -> None:
    checker.check(GOOD)
    assert checker._process is not None
    os.kill(checker._process.pid, signal.SIGKILL)
    checker._process.wait()
    assert checker.check(GOOD)


def test_a_fork_that_another_process_ended_is_no_error_of_the_grammar(checker: CompileSandbox) -> None:
    process = checker._ready()
    for _ in range(3):
        (fork,) = children(process.pid)
        os.kill(fork, signal.SIGKILL)
        wait_until(lambda fork=fork: is_gone(fork) and len(os.listdir(f"/proc/{fork}/task")) < 2)  # type: ignore[misc]
        assert checker.check(GOOD) and checker._process is process
    assert len(children(process.pid)) == 1


def test_a_grammar_that_no_process_can_check_is_no_invalid_grammar(
    checker: CompileSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = []
    monkeypatch.setattr(
        "chairlift.engine.structured.compile_sandbox._received", lambda source, seconds: READY if seconds > 30 else b""
    )
    monkeypatch.setattr(
        CompileSandbox, "start", lambda self, start=CompileSandbox.start: (began.append(1), start(self))[1]
    )
    with pytest.raises(StructuredOutputFailed, match="is gone"):
        checker.check(GOOD)
    assert len(began) == 2


def test_a_reply_that_was_not_read_does_not_reach_the_next_call(
    checker: CompileSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(source: int, seconds: float) -> bytes:
        raise MemoryError

    checker.check(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr("chairlift.engine.structured.compile_sandbox._received", no_room)
        with pytest.raises(MemoryError):
            checker.check(StructuredOutput(regex="first"))
    assert "second" in checker.check(StructuredOutput(regex="second"))


def test_ctrl_c_of_a_terminal_does_not_reach_it(checker: CompileSandbox) -> None:
    checker.start()
    assert checker._process is not None
    assert os.getpgid(checker._process.pid) != os.getpgid(0)


def test_one_that_means_nothing_says_why(checker: CompileSandbox) -> None:
    with pytest.raises(InvalidRequest, match=r"structured\.regex: .*unclosed group"):
        checker.check(StructuredOutput(regex="(("))
    with pytest.raises(InvalidRequest, match=r"structured\.json_schema: .*banana"):
        checker.check(StructuredOutput(json_schema={"type": "banana"}))
    with pytest.raises(InvalidRequest, match=r"structured\.json_schema: no output can follow it"):
        checker.check(StructuredOutput(json_schema={"$ref": "#"}))


def test_one_whose_first_mask_is_too_costly_is_refused(checker: CompileSandbox) -> None:
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(20_000)}}
    with pytest.raises(InvalidRequest):
        checker.check(StructuredOutput(json_schema=many))


def test_a_closed_checker_starts_no_process() -> None:
    checker = CompileSandbox(VOCABULARY, VOCAB_SIZE)
    checker.close()
    with pytest.raises(EngineDead):
        checker.check(GOOD)


def test_a_process_whose_owner_is_gone_leaves() -> None:
    process = subprocess.Popen([sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    checker = CompileSandbox(VOCABULARY, VOCAB_SIZE)
    _send(process, checker._begin)
    assert process.stdout.read(LENGTH_BYTES + len(READY)).endswith(READY)
    process.stdin.close()
    assert process.wait(10) == 0
    process.stdout.close()


def test_a_process_that_is_busy_with_a_grammar_leaves_too_when_its_owner_dies() -> None:
    code = f"""
import os, sys
sys.path[:0] = {[os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../..")]!r}
from test_compile_sandbox import CompileSandbox, HANGS, VOCAB_SIZE, VOCABULARY, _send
import msgspec
checker = CompileSandbox(VOCABULARY, VOCAB_SIZE)
process = checker._ready()
_send(process, msgspec.msgpack.encode(HANGS))
print(process.pid, flush=True)
os._exit(0)
"""
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    wait_until(lambda: is_gone(pid))
