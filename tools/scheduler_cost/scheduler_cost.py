"""Scheduler cost: milliseconds of schedule() and commit() per step, without any model's time.

Every case is an engine that is kept full: one request in twenty finishes in each step, and as many new ones start
(scheduler_cost_rig.py). The cases alternate, one window of steps each, so that noise of the machine affects all alike.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from chairlift.bench.offline.subprocess_run import environ_with
from chairlift.bench.report.percentiles import summarize
from chairlift.core.errors import EngineDead
from chairlift.engine.scheduler.batching_policy import NAMES as BATCHINGS
from chairlift.engine.scheduler.waiting_queue.base import POLICIES
from scheduler_cost.scheduler_cost_rig import CostCase, WindowTotals

TOOLS = Path(__file__).parents[1]
RUNNING = (256, 1024)
FLATNESS = (100, 1_000, 10_000, 100_000)


def all_cases() -> list[CostCase]:
    """Return each scheduling policy with "mixed", and each other batching policy with "fifo"."""
    pairs = [(policy, "mixed") for policy in POLICIES]
    pairs += [("fifo", batching) for batching in BATCHINGS if batching != "mixed"]
    return [
        CostCase(scheduling_policy=policy, batching_policy=batching, running=running)
        for policy, batching in pairs
        for running in RUNNING
    ]


def flatness_cases(policy: str) -> list[CostCase]:
    """Return the same engine with longer and longer waiting queues."""
    return [CostCase(scheduling_policy=policy, waiting=waiting) for waiting in FLATNESS]


class _RigProcess:
    """A rig in its own process, like an engine, so that it shares its memory with nothing else."""

    def __init__(self, case: CostCase, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scheduler_cost.scheduler_cost_rig"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=environ_with(TOOLS),
        )  # fmt: skip
        try:
            self._call(msgspec.json.encode((case, seed)))
        except BaseException:
            self.close()
            raise

    def _call(self, line: bytes) -> bytes:
        """Send a line and return the reply; the reply to the first line means that the rig is full."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with suppress(BrokenPipeError):
            stdin.write(line + b"\n")
            stdin.flush()
        if not (reply := stdout.readline()):
            raise EngineDead(f"the process that measures a case ended with exit code {self._process.wait()}")
        return reply

    def run_steps(self, steps: int) -> WindowTotals:
        """Run a number of steps and return their totals."""
        return msgspec.json.decode(self._call(b"%d" % steps), type=WindowTotals)

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()


def measure(
    cases: Sequence[CostCase], *, windows: int, steps: int, seed: int = 0, note: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Run the cases in alternation, each in its own process: `windows` windows of `steps` steps.

    Returns an entry for each case. ms_per_step: median over the windows of the window's mean. by_window: those means.
    one_step_ms: distribution over all steps. over_first: median over the windows of the case's mean divided by the
    first case's mean in the same window.
    """
    say = note or (lambda line: None)
    totals: list[list[WindowTotals]] = [[] for _ in cases]
    with ExitStack() as stack:
        rigs = []
        for case in cases:
            policies = f"{case.scheduling_policy}, {case.batching_policy}"
            say(f"filling {policies}, {case.running} running, {case.waiting:,} waiting")
            rigs.append(stack.enter_context(closing(_RigProcess(case, seed))))
        for window in range(windows):
            say(f"window {window + 1} of {windows}")
            for rig, case_totals in zip(rigs, totals, strict=True):
                case_totals.append(rig.run_steps(steps))
    means = [[statistics.fmean(window.milliseconds) for window in case_totals] for case_totals in totals]
    return [
        {
            **asdict(case),
            "ms_per_step": statistics.median(case_means),
            "by_window": case_means,
            "over_first": statistics.median(a / b for a, b in zip(case_means, means[0], strict=True)),
            "one_step_ms": summarize(each for window in case_totals for each in window.milliseconds),
            **_per_step(case_totals, windows * steps),
        }
        for case, case_totals, case_means in zip(cases, totals, means, strict=True)
    ]


def _per_step(totals: Sequence[WindowTotals], steps: int) -> dict[str, float]:
    rows = sum(window.rows for window in totals)
    return {
        "schedule_ms": sum(window.schedule_ms for window in totals) / steps,
        "commit_ms": sum(window.commit_ms for window in totals) / steps,
        "intake_ms": sum(window.intake_ms for window in totals) / steps,
        "cpu_ms": sum(window.cpu_ms for window in totals) / steps,
        "rows": rows / steps,
        "finished_share": sum(window.finished for window in totals) / rows,
        "prefill_tokens": sum(window.prefill_tokens for window in totals) / steps,
        "preemptions": sum(window.preemptions for window in totals) / steps,
    }
