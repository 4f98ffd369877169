"""judge_mutants: runs the tests of each mutant in a copy with its fault, after the same tests in a copy without it."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mutants.mutant import Mutant
from mutants.tree_copy import CopyFailed, TreeCopy, copy_tree

BASELINE_TIMEOUT_SECONDS = 1800.0
"""Seconds that a run without a fault may take."""

TIMEOUT_SECONDS = 60.0
TIMEOUT_FACTOR = 5.0
"""A run with a fault may take TIMEOUT_FACTOR times as long as the one without, and TIMEOUT_SECONDS more."""

PASSED, TESTS_FAILED, INTERRUPTED = 0, 1, 2
"""Exit codes of pytest; modules that cannot be imported interrupt it."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class Verdict(StrEnum):
    """What became of a mutant; an error proves nothing."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class PytestRun:
    """One run of pytest, up to its first failure.

    Attributes:
        exit_code: None after a timeout; negative for a signal.
        seconds: how long it ran.
        first_failure: the test or module that failed; "" without one.
        output: the end of what it printed.
    """

    exit_code: int | None
    seconds: float
    first_failure: str
    output: str


@dataclass(frozen=True, slots=True)
class MutantResult:
    """The verdict on one mutant.

    Attributes:
        id: the mutant's id.
        verdict: killed, SURVIVED or error.
        reason: the first failing test, that the run timed out, or what is wrong.
        seconds: duration of the run with the fault.
        baseline_seconds: duration of the run without it.
    """

    id: str
    verdict: Verdict
    reason: str
    seconds: float = 0.0
    baseline_seconds: float = 0.0


def judge_mutants(root: Path, mutants: Sequence[Mutant], *, full: bool, jobs: int) -> Iterator[MutantResult]:
    """Yield the result of each mutant, in their order; `jobs` runs at a time.

    Mutants with the same tests share one run without a fault.
    """
    baselines: dict[tuple[str, ...], Future[PytestRun]] = {}
    results: list[Future[MutantResult]] = []
    with ThreadPoolExecutor(jobs) as pool:
        # A run without a fault is queued before those that wait for it, so that it has begun when they begin.
        for mutant in mutants:
            args = mutant.pytest_args
            if args not in baselines:
                baselines[args] = pool.submit(_run_baseline, root, args, full)
            results.append(pool.submit(_judge, root, mutant, baselines[args], full))
        try:
            for result in results:
                yield result.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run_baseline(root: Path, args: Sequence[str], full: bool) -> PytestRun:
    with copy_tree(root) as copy:
        return run_pytest(copy, args, full=full, timeout_seconds=BASELINE_TIMEOUT_SECONDS)


def _judge(root: Path, mutant: Mutant, baseline: Future[PytestRun], full: bool) -> MutantResult:
    without = baseline.result()
    if without.exit_code != PASSED:
        problem = without.first_failure or f"pytest's exit code is {without.exit_code}: {without.output[-500:]}"
        reason = f"its tests do not pass without the fault: {problem}"
        return MutantResult(mutant.id, Verdict.ERROR, reason, baseline_seconds=without.seconds)
    timeout = TIMEOUT_SECONDS + TIMEOUT_FACTOR * without.seconds
    try:
        with copy_tree(root) as copy:
            mutant.apply(copy.root)
            if mutant.is_native:
                copy.compile_library()
            run = run_pytest(copy, mutant.pytest_args, full=full, timeout_seconds=timeout)
    except (ValueError, OSError, subprocess.SubprocessError, CopyFailed) as error:
        return MutantResult(mutant.id, Verdict.ERROR, str(error), baseline_seconds=without.seconds)
    verdict, reason = read_verdict(run)
    return MutantResult(mutant.id, verdict, reason, run.seconds, without.seconds)


def read_verdict(run: PytestRun) -> tuple[Verdict, str]:
    """Return the verdict that follows from a run with a fault, and its reason."""
    if run.exit_code is None:
        return Verdict.KILLED, f"the tests did not end within {run.seconds:.0f} s"
    if run.exit_code == PASSED:
        return Verdict.SURVIVED, "every test passes"
    if run.exit_code == TESTS_FAILED:
        return Verdict.KILLED, run.first_failure or "a test ended pytest"
    if run.exit_code < 0:
        return Verdict.KILLED, f"{signal.Signals(-run.exit_code).name} ended pytest"
    if run.exit_code == INTERRUPTED and run.first_failure:
        return Verdict.ERROR, f"collection fails: {run.first_failure}"
    return Verdict.ERROR, f"pytest's exit code is {run.exit_code}: {run.output[-500:]}"


def run_pytest(copy: TreeCopy, args: Sequence[str], *, full: bool, timeout_seconds: float) -> PytestRun:
    """Run tests of a copy up to the first failure, with one thread; `full` runs all their seeds and steps."""
    command = [str(copy.python), "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "--tb=short", "-rfE"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"CHAIRLIFT_FULL": "1" if full else "", "OMP_NUM_THREADS": "1"}
    started_at = time.monotonic()
    process = subprocess.Popen(
        [*command, *args], cwd=copy.root, env=environment, process_group=0, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    exit_code: int | None = None
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
        exit_code = process.returncode
    except subprocess.TimeoutExpired:
        output = ""
    finally:
        _kill_group(process)
    found = _FAILED.search(output)
    return PytestRun(exit_code, time.monotonic() - started_at, found[1] if found else "", output[-4000:])


def _kill_group(process: "subprocess.Popen[str]") -> None:
    """End the tests, and the child processes that they left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all have ended
    process.wait()
