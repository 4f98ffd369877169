"""Lift and Audit: an engine on a fake model under a fake clock, with a check of every plan."""

import os
import threading
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chairlift.core.clock import FakeClock
from chairlift.core.errors import ChairliftError
from chairlift.core.request import EngineOutput, FinishReason, GenerateRequest
from chairlift.core.sampling import SamplingParams
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.runner.fake import FakeConfig, FakeRunner, expected_tokens
from chairlift.engine.scheduler.batching_policy import MAX_PREFILL_STREAK
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.waiting_queue.priority import PriorityQueue
from chairlift.engine.sequence import Sequence, SequenceId, SequenceStatus
from chairlift.engine.step_plan import StepPlan, StepResult

FULL = os.environ.get("CHAIRLIFT_FULL") == "1"
"""Whether all seeds and steps run (`make test-all`)."""

PATIENCE = 30
"""Seconds that a test waits for an output."""

Hook = Callable[[StepPlan, str], None]


def ask(
    name: str, prompt: Items[int] | int, max_tokens: int = 4, *, stop: Items[int] = (), seed: int = 0, n: int = 1,
    prompt_logprobs: int | None = None, **options: Any,
) -> GenerateRequest:  # fmt: skip
    """Make a request, greedy unless it has several choices; a number as prompt means the ids 1, 2, ..."""
    ids = tuple(range(1, prompt + 1)) if isinstance(prompt, int) else tuple(prompt)
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.0 if n == 1 else 1.0, stop_token_ids=tuple(stop), seed=seed, n=n,
        prompt_logprobs=prompt_logprobs,
    )  # fmt: skip
    options.setdefault("request_id", name)
    return GenerateRequest(prompt_token_ids=ids, params=params.with_defaults({}, max_tokens=1, seed=0), **options)


def make_scheduler(
    *, num_blocks: int = 64, block_size: int = 4, windows: tuple[int | None, ...] = (None,), caching: bool = True,
    vocab_size: int = 1000, max_model_len: int = 512, **options: Any,
) -> Scheduler:  # fmt: skip
    """Make a scheduler without a loop and without a runner."""
    config = SchedulerConfig(**options)
    info = RunnerInfo(vocab_size=vocab_size, max_model_len=max_model_len, num_blocks=num_blocks,
                      block_size=block_size, windows=windows)  # fmt: skip
    cache = CacheConfig(num_blocks=num_blocks, block_size=block_size, windows=windows, enable_prefix_caching=caching)
    return Scheduler(config, KVCacheManager(cache), RequestLimits.from_config(config, info))


def answer(
    plan: StepPlan, token: int | Items[int] = 7, *, faults: Items[tuple[int, ChairliftError]] = ()
) -> StepResult:
    """Make the result of a plan by hand: one token for all sample rows, or one for each."""
    rows = len(plan.sample_rows)
    tokens = [token] * rows if isinstance(token, int) else list(token)
    assert len(tokens) == rows
    bounds = np.arange(rows + 1, dtype=np.int32)
    return StepResult(plan.step_id, np.array(tokens, np.int32), bounds, row_errors=tuple(faults))


def turn(scheduler: Scheduler, now: float = 0.0, token: int = 7) -> tuple[StepPlan, list[EngineOutput]]:
    """Schedule a step, which must be possible, and commit it with that token for every sampled row."""
    plan = scheduler.schedule(now)
    assert plan is not None, "no sequence can run"
    return plan, scheduler.commit(answer(plan, token), now)


def rows_of(scheduler: Scheduler) -> dict[str, int]:
    """Return the request ids of the newest in-flight step and their number of tokens."""
    return {row.sequence.request.request_id: row.end - row.start for row in scheduler.in_flight_steps[-1].rows}


def key_of(name: str, index: int) -> SequenceId:
    """Return the seq_id of a choice."""
    return (name, index) if index else name


def expected_end(request: GenerateRequest, fake: FakeConfig, index: int = 0) -> tuple[list[int], bool]:
    """Return all tokens that a choice gets, and whether it then fails: it reads a poisoned or NaN token."""
    tokens = expected_tokens(request.prompt_token_ids, request.params, fake, request.eos_token_ids, index)
    bad = {fake.poison, fake.nan} - {None}
    if bad & set(request.prompt_token_ids):
        return [], True
    first = next((at for at, token in enumerate(tokens[:-1]) if token in bad), None)
    return (tokens, False) if first is None else (tokens[: first + 1], True)


@dataclass
class QueueStay:
    """One stay in the waiting queue: the running sequences when it began, and the counters then."""

    running: set[int]
    started: int
    steps: int
    failed: int


@dataclass
class Audit:
    """Checks every plan against the limits, and every wait against the bound in step_scheduler.py."""

    scheduler: Scheduler
    sequences: dict[int, Sequence] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)
    stays: dict[int, QueueStay] = field(default_factory=dict)
    bypasses: dict[int, int] = field(default_factory=dict)
    streaks: dict[int, int] = field(default_factory=dict)
    num_empty_steps: int = 0
    longest_wait: int = 0
    plans: list[tuple[object, ...]] = field(default_factory=list)
    keep_plans: bool = False
    lenient: bool = False  # allocations fail although blocks are free, so a decoding sequence may miss a step

    def __post_init__(self) -> None:
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def enqueued(self, sequence: Sequence) -> None:
        counters = self.scheduler.counters
        self.sequences[sequence.arrival_index] = sequence
        running = set(self.scheduler.running)
        self.stays[sequence.arrival_index] = QueueStay(
            running, len(self.started), counters.steps, counters.failed_steps
        )

    def schedule(self, now: float) -> StepPlan | None:
        scheduler = self.scheduler
        before = dict(scheduler.running)
        epochs = {arrival: sequence.epoch for arrival, sequence in before.items()}
        num_unscheduled = {arrival: sequence.num_unscheduled_tokens for arrival, sequence in before.items()}
        starts = {arrival: sequence.num_scheduled_tokens for arrival, sequence in before.items()}
        excused = self.lenient or bool(scheduler._suspects)
        waiting = set(self.stays)
        for sequence in scheduler.waiting:
            if sequence.arrival_index not in self.stays:  # it was deferred
                self.enqueued(sequence)
        plan = self._schedule(now)
        for arrival, sequence in before.items():
            if sequence.status is SequenceStatus.WAITING and sequence.epoch != epochs[arrival]:
                self.enqueued(sequence)
        started_now = [arrival for arrival in scheduler.running if arrival not in before]
        for arrival in started_now:
            self._started(arrival, waiting)
        self._slots_are_used()
        self._not_stuck(plan)
        if plan is not None:
            self._budgets(plan)
            for row in scheduler.in_flight_steps[-1].rows:
                if row.sequence.arrival_index in starts:
                    assert row.start == starts[row.sequence.arrival_index], (
                        "a row does not begin where the last one ended"
                    )
            scheduled = {row.sequence.arrival_index for row in scheduler.in_flight_steps[-1].rows}
            still_running = {
                arrival for arrival, sequence in before.items()
                if sequence.status is SequenceStatus.RUNNING and sequence.epoch == epochs[arrival]
            }  # fmt: skip
            if not excused:
                self._check_left_out({each for each in still_running - scheduled if num_unscheduled[each] == 1})
        return plan

    def _slots_are_used(self) -> None:
        """Check that a running sequence holds no more unused KV token slots than a block's end and the lookahead.

        A further choice whose copy of a block was lost with a failed step computes that block again.
        """
        size, lookahead = self.scheduler.cache.config.block_size, self.scheduler.limits.lookahead
        for sequence in self.scheduler.running.values():
            assert sequence.table is not None
            again = size - 1 if sequence.choice_index and not sequence.has_first_token else 0
            assert sequence.table.capacity - sequence.num_computed_tokens <= size - 1 + lookahead + again
            calm = not (self.lenient or self.scheduler.counters.failed_steps)  # a rolled back step keeps its blocks
            assert not calm or sequence.table.capacity - sequence.num_scheduled_tokens <= size - 1, (
                "blocks held for nothing"
            )

    def _not_stuck(self, plan: StepPlan | None) -> None:
        scheduler = self.scheduler
        if (
            plan is None
            and not scheduler.in_flight_steps
            and scheduler.sequences
            and not scheduler.table.pending_outputs
        ):
            self.num_empty_steps += 1
            assert self.num_empty_steps < 3, "a sequence is open, none runs and no step is in flight"
        else:
            self.num_empty_steps = 0

    def _budgets(self, plan: StepPlan) -> None:
        config, counts = self.scheduler.config, plan.num_new_tokens.tolist()
        assert sum(counts) == plan.num_tokens <= config.max_batch_tokens
        assert sum(count for count in counts if count > 1) <= config.prefill_budget
        assert all(1 <= count <= config.max_prefill_chunk for count in counts)
        assert plan.num_rows <= config.max_running_sequences and len(set(plan.slots.tolist())) == plan.num_rows
        assert len(self.scheduler.in_flight_steps) <= config.max_in_flight_steps
        if self.keep_plans:
            arrays = (plan.slots, plan.num_new_tokens, plan.start_positions, plan.new_blocks, plan.input_ids)
            self.plans.append(
                (plan.step_id, plan.released_slots, plan.new_sequences, *(array.tobytes() for array in arrays))
            )

    def _started(self, arrival: int, waiting: set[int]) -> None:
        """Count the bypasses, then check the wait in the queue against the bound."""
        scheduler, config = self.scheduler, self.scheduler.config
        self.started.append(arrival)
        for older in waiting:
            sequence = self.sequences[older]
            if not self._is_before(sequence, self.sequences[arrival]):
                continue
            pending = sequence.awaited_block_hash is not None and scheduler.cache.is_pending(
                sequence.awaited_block_hash
            )
            excused = sequence.status is not SequenceStatus.WAITING or pending or sequence.num_pending_samples
            if not excused:
                self.bypasses[older] = self.bypasses.get(older, 0) + 1
                assert self.bypasses[older] <= config.max_bypass, "bypassed more often than max_bypass"
        stay = self.stays.pop(arrival)
        ahead = [self.sequences[one] for one in stay.running | set(self.started[stay.started : -1])]
        outputs = sum(one.max_output_tokens for one in ahead)
        work = outputs + sum(one.num_prompt_tokens for one in ahead)
        failed = scheduler.counters.failed_steps - stay.failed
        waited = scheduler.counters.steps - stay.steps
        # schedule() has already counted the step with which it starts.
        failed_steps_bound = config.max_in_flight_steps * (1 + failed)
        bound = (1 + config.protect_after_preemptions + outputs) * work + failed_steps_bound
        assert waited <= bound, f"waited {waited} steps, the bound is {bound}"
        # The same with the actual preemptions, which is much closer.
        done = sum((1 + one.num_preemptions) * (one.num_prompt_tokens + one.max_output_tokens) for one in ahead)
        assert waited <= done + failed_steps_bound, f"waited {waited} steps behind {done} tokens of work"
        self.longest_wait = max(self.longest_wait, waited)
        sequence = self.sequences[arrival]
        older_outputs = sum(one.max_output_tokens for one in self.sequences.values() if one.arrival_index <= arrival)
        assert sequence.num_preemptions <= config.protect_after_preemptions + older_outputs

    def _is_before(self, one: Sequence, other: Sequence) -> bool:
        """Whether the queue always orders one before the other."""
        queue, policy = self.scheduler.waiting, self.scheduler.config.policy
        if isinstance(queue, PriorityQueue):
            return (queue.rank(one), one.arrival_index) < (queue.rank(other), other.arrival_index)
        return policy == "fifo" and one.arrival_index < other.arrival_index

    def _check_left_out(self, left_out: set[int]) -> None:
        """Check that decoding sequences run in every step, or often enough where prompts go first."""
        batching = self.scheduler.config.batching
        self.streaks = {arrival: self.streaks.get(arrival, 0) + 1 for arrival in left_out}
        assert not left_out or batching in {"prefill_first", "static"}, "a decoding sequence got no token"
        if batching == "prefill_first":
            assert max(self.streaks.values(), default=0) <= MAX_PREFILL_STREAK, "prompts went first too often"

    def forget(self, arrival: int) -> None:
        """Forget a finished sequence; a stay without a start ends here."""
        self.stays.pop(arrival, None)
        self.bypasses.pop(arrival, None)


class StrictRunner(FakeRunner):
    """A fake that records contract errors of plans; the engine would take them for a failing forward pass."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.breaches: list[BaseException] = []

    def launch(self, plan: StepPlan) -> None:
        try:
            super().launch(plan)
        except (AssertionError, LookupError) as error:
            self.breaches.append(error)
            raise


class Lift:
    """An EngineLoop over a FakeRunner; records all requests and their outputs."""

    def __init__(
        self, fake: FakeConfig, *, caching: bool = True, hook: Hook | None = None,
        row_faults: Callable[[StepPlan], list[tuple[int, ChairliftError]]] | None = None,
        keep_plans: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        self.fake = fake
        self.clock = FakeClock()
        own_time = None if options.get("overlap") else self.clock  # a runner in a thread would move it at any moment
        self.runner = StrictRunner(fake, clock=own_time, hook=hook, row_faults=row_faults)
        self.loop = EngineLoop(self.runner, SchedulerConfig(**options), clock=self.clock, enable_prefix_caching=caching)
        self.loop.start()
        self.scheduler = self.loop.scheduler
        self.cache = self.scheduler.cache
        self.audit = Audit(self.scheduler, keep_plans=keep_plans)
        self.requests: dict[str, GenerateRequest] = {}
        self.tokens: dict[SequenceId, list[int]] = {}
        self.ends: dict[SequenceId, FinishReason] = {}
        self.scores: dict[str, list[int]] = {}
        self.finals: dict[str, EngineOutput] = {}
        self._arrivals: dict[SequenceId, int] = {}

    def submit(self, *requests: GenerateRequest) -> None:
        for request in requests:
            assert request.request_id not in self.requests, "ids are used once here"
            self.requests[request.request_id] = request
            for index in range(request.params.num_choices):
                self.tokens[key_of(request.request_id, index)] = list(request.resumed_tokens(index))
            self._take(self.loop.submit(request))
            if request.request_id in self.scheduler.sequence_groups:
                for sequence in self.scheduler.sequence_groups[request.request_id].open.values():
                    self._arrivals[sequence.seq_id] = sequence.arrival_index
                    if sequence.status is SequenceStatus.WAITING:
                        self.audit.enqueued(sequence)

    def abort(self, request_id: str, index: int | None = None) -> EngineOutput | None:
        output = self.loop.abort(request_id, index)
        self._take([] if output is None else [output])
        return output

    def step(self, times: int = 1) -> list[EngineOutput]:
        news: list[EngineOutput] = []
        for _ in range(times):
            news += self.loop.step()
        self._take(news)
        return news

    def drain(self, limit: int = 20_000) -> None:
        """Step until no request is open, then check integrity and all outputs."""
        while not self.loop.is_idle:
            self.step()
            self.clock.advance(0.01)
            limit -= 1
            assert limit, f"still open: {list(self.scheduler.sequences)}"
        self.prove()

    def close(self) -> None:
        self.loop.stop()

    def _take(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            name = output.request_id
            key = key_of(name, output.choice_index)
            assert name not in self.finals, f"{name} got an output after its last one"
            assert key not in self.ends, f"{key} got an output after its end"
            self.tokens[key] += output.token_ids
            self.scores.setdefault(name, []).extend(entry.token_id for entry in output.prompt_logprobs)
            if output.finish_reason is not None:
                self.ends[key] = output.finish_reason
                if key in self._arrivals:
                    self.audit.forget(self._arrivals[key])
            if output.is_final:
                self._take_last(output)

    def _take_last(self, output: EngineOutput) -> None:
        name = output.request_id
        assert output.finish_reason is not None and output.usage is not None
        self.finals[name] = output
        keys = [key_of(name, index) for index in range(self.requests[name].params.num_choices)]
        assert output.usage.completion_tokens == sum(len(self.tokens[key]) for key in keys)
        for key in keys:
            if key not in self.ends:
                assert output.finish_reason in {FinishReason.ERROR, FinishReason.ABORT}, "a choice has no end"
                if key in self._arrivals:
                    self.audit.forget(self._arrivals[key])

    def sequence(self, name: str) -> Sequence:
        return self.scheduler.sequences[name]

    def prove(self, *, calm: bool = False) -> None:
        """Check integrity, and that every finished request got the right tokens.

        In a calm run (no aborts, timeouts, errors but poison and NaN) also the finish is exactly the expected one.
        """
        assert self.loop.check_integrity() == []
        assert self.runner.breaches == [], "a plan broke the runner's contract"
        if self.loop.is_idle:
            assert set(self.finals) == set(self.requests), "a request got no last output"
            counts = self.cache.counts()
            assert counts.held == 0 and counts.free + counts.cached == counts.total
            assert not self.cache._pending, "a block is pending and no sequence runs"
        for name, request in self.requests.items():
            self._prove_tokens(request, self.finals.get(name), calm)

    def _prove_tokens(self, request: GenerateRequest, final: EngineOutput | None, calm: bool) -> None:
        any_fails = False
        for index in range(request.params.num_choices):
            key, (tokens, fails) = key_of(request.request_id, index), expected_end(request, self.fake, index)
            got, any_fails = self.tokens[key], any_fails or fails
            assert got == tokens[: len(got)], f"{key}: {got} instead of {tokens}"
            if self.ends.get(key) in {FinishReason.STOP, FinishReason.LENGTH}:
                assert got == tokens and not fails
        if final is None:
            return
        assert (final.finish_reason is FinishReason.ERROR) == isinstance(final.error, ChairliftError)
        if calm and request.request_id in self._arrivals:
            assert (final.finish_reason is FinishReason.ERROR) == any_fails, f"{request.request_id}: {final}"
            if request.params.num_choices == 1:
                assert self.tokens[request.request_id] == expected_end(request, self.fake)[0]
            if not any_fails and request.params.prompt_logprobs is not None and not any(request.resume):
                assert self.scores[request.request_id] == list(request.prompt_token_ids[1:])


class NthCall:
    """Raises at the n-th call, once; counts all calls."""

    def __init__(self, nth: int) -> None:
        self.nth, self.calls = nth, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.nth:
            raise RuntimeError(f"call {self.nth} fails")

    @property
    def reached(self) -> bool:
        return self.calls >= self.nth


def released_tables(scheduler: Scheduler) -> list[object]:
    """Record the tables that the cache releases from now on."""
    tables: list[object] = []
    release = scheduler.cache.release

    def watched(table: object, hashes: object) -> None:
        tables.append(table)
        release(table, hashes)  # type: ignore[arg-type]

    scheduler.cache.release = watched  # type: ignore[method-assign]
    return tables


def finish_alone(scheduler: Scheduler) -> None:
    while scheduler.sequences:
        turn(scheduler)


class Box:
    """A sink that keeps everything and can be waited for."""

    def __init__(self) -> None:
        self.calls: list[list[EngineOutput]] = []
        self.done = threading.Event()
        self.over = threading.Event()

    def __call__(self, outputs: list[EngineOutput]) -> None:
        self.calls.append(outputs)
        if any(output.finish_reason is not None for output in outputs):
            self.done.set()
        if any(output.is_final for output in outputs):
            self.over.set()

    def wait(self) -> EngineOutput:
        assert self.done.wait(PATIENCE), "no last output came"
        return self.finals[0]

    def wait_for_last(self) -> EngineOutput:
        """Wait until all choices have finished."""
        assert self.over.wait(PATIENCE), "the request did not end"
        return self.finals[-1]

    @property
    def outputs(self) -> list[EngineOutput]:
        return [output for call in self.calls for output in call]

    @property
    def finals(self) -> list[EngineOutput]:
        return [output for output in self.outputs if output.finish_reason is not None]

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]
