"""Rig: an engine whose own time is measured, kept as full as it can be, with somebody new in line for each who leaves.

    python -m chairlift.bench.micro.scheduler_cost_rig

is one in a process of its own: the first line that it reads is its arm and seed as JSON, each further one a number of
steps, and it answers each with a Window as JSON.
"""

import gc
import signal
import sys
import time
from dataclasses import dataclass, field
from random import Random

import msgspec

from chairlift.bench.simulation.simulation import as_request
from chairlift.bench.workload.generators import below, between
from chairlift.bench.workload.workload import WorkloadRequest
from chairlift.core.request import GenerateRequest
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.gc_tuning import tune_gc
from chairlift.engine.runner.fake import FakeConfig, FakeRunner

TENANTS = tuple(f"tenant-{number}" for number in range(8))
PRIORITIES = 4
PREFIX_TOKENS = 32
VOCAB_SIZE = 32_000
PROMPT_TOKENS = (32, 64)
LIFETIME = (1, 39)
"""Output tokens of a request; 20 on average, so that one in twenty finishes in a step."""

BLOCK_SIZE = 16
SECONDS_PER_STEP = 0.05
WAITING = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCase:
    """What one engine is.

    Attributes:
        policy: order of its line.
        batching: how its steps are shared.
        running: its seats.
        waiting: requests in line, at all times.
    """

    policy: str = "fifo"
    batching: str = "mixed"
    running: int = 256
    waiting: int = WAITING


@dataclass(slots=True)
class WindowTotals:
    """What was seen of an arm in some steps; sums.

    Attributes:
        milliseconds: schedule and commit together, step by step.
        schedule_ms, commit_ms, intake_ms: of all steps; intake is putting requests in line, beside the two.
        cpu_ms: processor time of schedule and commit; less than their milliseconds where others take the processor.
        rows, finished, prefill_tokens, preemptions: of all steps.
    """

    milliseconds: list[float] = field(default_factory=list)
    schedule_ms: float = 0.0
    commit_ms: float = 0.0
    intake_ms: float = 0.0
    cpu_ms: float = 0.0
    rows: int = 0
    finished: int = 0
    prefill_tokens: int = 0
    preemptions: int = 0


class SchedulerRig:
    """One arm while it runs: a scheduler, a fake runner, and somebody new in line for each who leaves."""

    def __init__(self, arm: CostCase, seed: int) -> None:
        """Build it and let it run until blocks have been used and taken again."""
        self.arm = arm
        self._rng = Random(f"cost {seed}")
        self._asked = 0
        self._now = 0.0
        self._prefixes = {tenant: self._ids(PREFIX_TOKENS) for tenant in TENANTS}
        fake = FakeConfig(
            vocab_size=VOCAB_SIZE, num_blocks=16 * arm.running, block_size=BLOCK_SIZE, verify=False
        )  # fmt: skip
        config = SchedulerConfig(
            policy=arm.policy, batching=arm.batching, max_running_requests=arm.running,
            max_batch_tokens=32 * arm.running, max_queue_size=10**7,
        )  # fmt: skip
        self._runner = FakeRunner(fake)
        loop = EngineLoop(self._runner, config)
        loop.start()
        self._scheduler = loop.scheduler
        for _ in range(arm.running + arm.waiting):
            self._scheduler.add_request(self._request(), self._now)
        self.turn(100)

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(below(self._rng, VOCAB_SIZE) for _ in range(count))

    def _request(self) -> GenerateRequest:
        """Half of them begin with what their tenant shares."""
        rng, self._asked = self._rng, self._asked + 1
        tenant, length = TENANTS[below(rng, len(TENANTS))], between(rng, *PROMPT_TOKENS)
        own = length - (PREFIX_TOKENS if rng.random() < 0.5 else 0)
        prompt = self._prefixes[tenant][: length - own] + self._ids(max(1, own))
        item = WorkloadRequest(
            at=0.0, prompt_token_ids=prompt, output_tokens=between(rng, *LIFETIME), tenant=tenant,
            priority=below(rng, PRIORITIES),
        )  # fmt: skip
        return as_request(item, self._asked)

    def turn(self, steps: int) -> WindowTotals:
        """Run so many steps; what the fake takes is not counted, nor making requests."""
        scheduler, seen, clock, cpu = self._scheduler, WindowTotals(), time.perf_counter, time.thread_time
        stock = [self._request() for _ in range(steps * self.arm.running // 16)]
        before = scheduler.counters.preemptions
        for _ in range(steps):
            self._now += SECONDS_PER_STEP
            began, cpu_began = clock(), cpu()
            plan = scheduler.schedule(self._now)
            scheduled, cpu_scheduled = clock(), cpu()
            assert plan is not None, "nothing can ride"
            prefill = scheduler.in_flight_steps[-1].num_prefill_tokens
            self._runner.launch(plan)
            result = self._runner.collect()
            collected, cpu_collected = clock(), cpu()
            outputs = scheduler.commit(result, self._now)
            ended, cpu_ended = clock(), cpu()
            gone = sum(1 for output in outputs if output.is_final)
            requests = [stock.pop() if stock else self._request() for _ in range(gone)]
            renewed = clock()
            for request in requests:
                scheduler.add_request(request, self._now)
            seen.intake_ms += (clock() - renewed) * 1e3
            seen.schedule_ms += (scheduled - began) * 1e3
            seen.commit_ms += (ended - collected) * 1e3
            seen.cpu_ms += (cpu_scheduled - cpu_began + cpu_ended - cpu_collected) * 1e3
            seen.milliseconds.append((scheduled - began + ended - collected) * 1e3)
            seen.rows += plan.num_rows
            seen.finished += gone
            seen.prefill_tokens += prefill
        seen.preemptions = scheduler.counters.preemptions - before
        return seen


def serve() -> None:
    """Read orders from standard input until it ends."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=tuple[CostCase, int])
    rig = SchedulerRig(*order)
    tune_gc()  # as in an engine's own process
    answer, window = sys.stdout.buffer, b"{}"
    while True:
        answer.write(window + b"\n")
        answer.flush()
        steps = sys.stdin.buffer.readline()
        if not steps:
            return
        gc.collect()
        window = msgspec.json.encode(rig.turn(int(steps)))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who writes the orders
    serve()
