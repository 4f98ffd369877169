"""Cost: milliseconds that the scheduler itself takes a step, schedule() and commit(), without any model's time.

Every arm is an engine of its own that is kept as full as it can be: one request in twenty finishes in each step, and as
many new ones board (cost_rig.py). Arms take turns, one window of steps each, so that a noisy machine is noisy for all.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from typing import Any

import msgspec

from chairlift.bench.micro.scheduler_cost_rig import CostCase, WindowTotals
from chairlift.bench.report.percentiles import summarize
from chairlift.core.errors import EngineDead
from chairlift.engine.scheduler.batching_policy import NAMES as BATCHINGS
from chairlift.engine.scheduler.waiting_queue.base import POLICIES

RUNNING = (256, 1024)
FLATNESS = (100, 1_000, 10_000, 100_000)


def every_arm() -> list[CostCase]:
    """Each policy with batching mixed, and each other batching policy with fifo, at both sizes."""
    pairs = [(policy, "mixed") for policy in POLICIES]
    pairs += [("fifo", batching) for batching in BATCHINGS if batching != "mixed"]
    return [
        CostCase(policy=policy, batching=batching, running=running) for policy, batching in pairs for running in RUNNING
    ]


def flatness_arms(policy: str) -> list[CostCase]:
    """The same engine with longer and longer lines."""
    return [CostCase(policy=policy, waiting=waiting) for waiting in FLATNESS]


class _Process:
    """A rig in a process of its own, as an engine has: nobody else's memory lies between what it touches."""

    def __init__(self, arm: CostCase, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "chairlift.bench.micro.scheduler_cost_rig"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            self._ask(msgspec.json.encode((arm, seed)))
        except BaseException:
            self.close()
            raise

    def _ask(self, line: bytes) -> bytes:
        """Return its answer; the first one says that it is full."""
        put, get = self._process.stdin, self._process.stdout
        assert put is not None
        assert get is not None
        with suppress(BrokenPipeError):
            put.write(line + b"\n")
            put.flush()
        if not (answer := get.readline()):
            raise EngineDead(f"the process of an arm ended with exit code {self._process.wait()}")
        return answer

    def turn(self, steps: int) -> WindowTotals:
        """Run so many steps."""
        return msgspec.json.decode(self._ask(b"%d" % steps), type=WindowTotals)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()


def measure(
    arms: Sequence[CostCase], *, windows: int, steps: int, seed: int = 0, note: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Run the arms in turns, `windows` times `steps` steps each, every arm in its own process; returns an entry each.

    ms_per_step: median over the windows of the window's mean. by_window: those means. one_step_ms: all steps alike.
    over_first: median over the windows of the mean over that of the first arm in the same turn.
    """
    say = note or (lambda line: None)
    seen: list[list[WindowTotals]] = [[] for _ in arms]
    with ExitStack() as stack:
        rigs = []
        for arm in arms:
            say(f"filling {arm.policy}, {arm.batching}, {arm.running} running, {arm.waiting:,} waiting")
            rigs.append(stack.enter_context(closing(_Process(arm, seed))))
        for window in range(windows):
            say(f"window {window + 1} of {windows}")
            for rig, found in zip(rigs, seen, strict=True):
                found.append(rig.turn(steps))
    means = [[statistics.fmean(window.milliseconds) for window in found] for found in seen]
    return [
        {
            **asdict(arm),
            "ms_per_step": statistics.median(mine),
            "by_window": mine,
            "over_first": statistics.median(a / b for a, b in zip(mine, means[0], strict=True)),
            "one_step_ms": summarize(each for window in found for each in window.milliseconds),
            **_each_step(found, windows * steps),
        }
        for arm, found, mine in zip(arms, seen, means, strict=True)
    ]


def _each_step(found: Sequence[WindowTotals], steps: int) -> dict[str, float]:
    rows = sum(window.rows for window in found)
    return {
        "schedule_ms": sum(window.schedule_ms for window in found) / steps,
        "commit_ms": sum(window.commit_ms for window in found) / steps,
        "intake_ms": sum(window.intake_ms for window in found) / steps,
        "cpu_ms": sum(window.cpu_ms for window in found) / steps,
        "rows": rows / steps,
        "finished_share": sum(window.finished for window in found) / rows,
        "prefill_tokens": sum(window.prefill_tokens for window in found) / steps,
        "preemptions": sum(window.preemptions for window in found) / steps,
    }
