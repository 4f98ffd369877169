"""SchedulerRig: a scheduler that is kept full, with a new waiting request for each that finishes, and timed.

    python -m scheduler_cost.scheduler_cost_rig

runs one in its own process. The first line of standard input has its case and seed as JSON. Each further line has a
number of steps, and the reply to it is a WindowTotals as JSON.
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
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.gc_tuning import tune_gc
from chairlift.engine.request_validation import ValidatedRequest, validate_request
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig

TENANTS = tuple(f"tenant-{number}" for number in range(8))
PRIORITIES = 4
PREFIX_TOKENS = 32
VOCAB_SIZE = 32_000
PROMPT_TOKENS = (32, 64)
LIFETIME = (1, 39)
"""Least and most output tokens of a request; 20 on average, so that one in twenty finishes in a step."""

BLOCK_SIZE = 16
SECONDS_PER_STEP = 0.05
WAITING = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCase:
    """The configuration of one engine.

    Attributes:
        scheduling_policy: the engine's scheduling policy.
        batching_policy: the engine's batching policy.
        running: maximum number of running requests; that many always run.
        waiting: number of requests in the waiting queue, at all times.
    """

    scheduling_policy: str = "fifo"
    batching_policy: str = "mixed"
    running: int = 256
    waiting: int = WAITING


@dataclass(slots=True)
class WindowTotals:
    """The measurements of a case over a window of steps.

    Attributes:
        milliseconds: schedule and commit together, for each step.
        schedule_ms, commit_ms, intake_ms: sums over the steps; intake is add_request(), which is in neither of the two.
        cpu_ms: processor time of schedule and commit; less than their wall time when other processes take the core.
        rows, finished, prefill_tokens, preemptions: sums over the steps.
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
    """A running case: a scheduler, a fake runner, and a new waiting request for each that finishes."""

    def __init__(self, case: CostCase, seed: int) -> None:
        """Build the engine and run it until blocks have been freed and allocated again."""
        self.case = case
        self._rng = Random(f"cost {seed}")
        self._num_requests = 0
        self._now = 0.0
        self._prefixes = {tenant: self._ids(PREFIX_TOKENS) for tenant in TENANTS}
        fake = FakeConfig(
            vocab_size=VOCAB_SIZE, num_blocks=16 * case.running, block_size=BLOCK_SIZE, verify=False
        )  # fmt: skip
        config = SchedulerConfig(
            scheduling_policy=case.scheduling_policy, batching_policy=case.batching_policy,
            max_running_requests=case.running, max_batch_tokens=32 * case.running, max_queue_size=10**7,
        )  # fmt: skip
        self._runner = FakeRunner(fake)
        loop = EngineLoop(self._runner, config)
        loop.start()
        self._scheduler = loop.scheduler
        for _ in range(case.running + case.waiting):
            self._scheduler.add_request(self._request(), self._now)
        self.run_steps(100)

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(below(self._rng, VOCAB_SIZE) for _ in range(count))

    def _request(self) -> ValidatedRequest:
        """Return a new request; half of the requests begin with their tenant's shared prefix."""
        rng, self._num_requests = self._rng, self._num_requests + 1
        tenant, length = TENANTS[below(rng, len(TENANTS))], between(rng, *PROMPT_TOKENS)
        own = length - (PREFIX_TOKENS if rng.random() < 0.5 else 0)
        prompt = self._prefixes[tenant][: length - own] + self._ids(max(1, own))
        item = WorkloadRequest(
            at=0.0, prompt_token_ids=prompt, output_tokens=between(rng, *LIFETIME), tenant=tenant,
            priority=below(rng, PRIORITIES),
        )  # fmt: skip
        return validate_request(as_request(item, self._num_requests), self._scheduler.limits)

    def run_steps(self, steps: int) -> WindowTotals:
        """Run a number of steps; the time of the fake runner and of creating requests is not counted."""
        scheduler, totals, clock, cpu = self._scheduler, WindowTotals(), time.perf_counter, time.thread_time
        prepared = [self._request() for _ in range(steps * self.case.running // 16)]
        before = scheduler.counters.preemptions
        for _ in range(steps):
            self._now += SECONDS_PER_STEP
            started_at, cpu_started_at = clock(), cpu()
            plan = scheduler.schedule(self._now)
            scheduled, cpu_scheduled = clock(), cpu()
            assert plan is not None, "no sequence can be scheduled"
            prefill = scheduler.in_flight_steps[-1].num_prefill_tokens
            self._runner.launch(plan)
            result = self._runner.collect()
            collected, cpu_collected = clock(), cpu()
            outputs = scheduler.commit(result, self._now)
            ended, cpu_ended = clock(), cpu()
            finished = sum(1 for output in outputs if output.is_final)
            requests = [prepared.pop() if prepared else self._request() for _ in range(finished)]
            intake_started = clock()
            for request in requests:
                scheduler.add_request(request, self._now)
            totals.intake_ms += (clock() - intake_started) * 1e3
            totals.schedule_ms += (scheduled - started_at) * 1e3
            totals.commit_ms += (ended - collected) * 1e3
            totals.cpu_ms += (cpu_scheduled - cpu_started_at + cpu_ended - cpu_collected) * 1e3
            totals.milliseconds.append((scheduled - started_at + ended - collected) * 1e3)
            totals.rows += plan.num_rows
            totals.finished += finished
            totals.prefill_tokens += prefill
        totals.preemptions = scheduler.counters.preemptions - before
        return totals


def serve() -> None:
    """Read the case, then numbers of steps, from standard input until it ends."""
    arguments = msgspec.json.decode(sys.stdin.buffer.readline(), type=tuple[CostCase, int])
    rig = SchedulerRig(*arguments)
    tune_gc()  # as in an engine's own process
    stdout, window = sys.stdout.buffer, b"{}"
    while True:
        stdout.write(window + b"\n")
        stdout.flush()
        steps = sys.stdin.buffer.readline()
        if not steps:
            return
        gc.collect()
        window = msgspec.json.encode(rig.run_steps(int(steps)))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    serve()
