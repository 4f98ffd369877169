"""Scheduler and fake runner under random events: every plan keeps the limits, every request ends once and correctly."""

import random
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import DataObject, booleans, data, integers, lists, none, sampled_from

from chairlift.core.errors import ChairliftError, SamplingFailed
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.batching_policy import NAMES
from chairlift.engine.scheduler.engine_limits import EngineLimits, LimitsConfig
from chairlift.engine.scheduler.waiting_queue.base import POLICIES
from chairlift.engine.step_plan import StepPlan
from support_adapter_versions import AdapterVersions
from support_engine import EngineHarness, expected_outcome, make_request, seq_id_of
from support_requests import BAD_TOKENS, peak_blocks
from support_shares import FULL

LONGEST = 40


class SchedulerMachine(RuleBasedStateMachine):
    """Random events; support_audit.Audit checks each plan: budgets, chunks, slots, bypasses and the waiting bound."""

    @initialize(
        overlap=booleans(), block_size=sampled_from([1, 3, 16]), pool_factor=sampled_from([1.0, 1.5, 4.0]),
        windows=sampled_from([(None,), (None, 6), (4, 9)]), caching=booleans(),
        max_batch_tokens=sampled_from([3, 9, 64]), max_running_requests=sampled_from([2, 6]),
        max_chunk_tokens=sampled_from([None, 1, 5]), max_prefill_tokens=sampled_from([None, 4]),
        max_bypass=sampled_from([0, 2]), prefix_wait_steps=sampled_from([0, 3, 100]),
        protect_after_preemptions=integers(1, 3),
        batching_policy=sampled_from(NAMES), scheduling_policy=sampled_from(sorted(POLICIES)),
        target_itl_ms=sampled_from([None, 0.5, 6.0]),
        has_bad_tokens=booleans(), num_state_checkpoints=sampled_from([None, None, 0, 1, 4, 40]),
    )  # fmt: skip
    def begin(
        self, overlap: bool, block_size: int, pool_factor: float, windows: tuple[int | None, ...], caching: bool,
        has_bad_tokens: bool, num_state_checkpoints: int | None, **options: Any,
    ) -> None:  # fmt: skip
        config = SchedulerConfig(overlap=overlap, **options)
        peak = peak_blocks(windows, block_size, LONGEST, config.max_prefill_chunk * config.max_in_flight_steps)
        poison, nan = BAD_TOKENS if has_bad_tokens else (None, None)
        fake = FakeConfig(vocab_size=50, max_model_len=LONGEST, num_blocks=int(peak * pool_factor),
                          block_size=block_size, windows=windows, poison=poison, nan=nan, seconds_per_step=0.002,
                          seconds_per_token=0.0005, has_state=num_state_checkpoints is not None,
                          num_state_checkpoints=num_state_checkpoints or 0)  # fmt: skip
        self.failing: dict[tuple[int, str], object] = {}
        self.bad_rows: dict[int, int] = {}
        self.harness = EngineHarness(
            fake,
            caching=caching,
            hook=self.hook,
            row_errors=self.row_errors,
            overlap=overlap,
            max_queue_size=8,
            **options,
        )
        self.may_differ = False
        self.versions = AdapterVersions(self.harness)

    def hook(self, plan: StepPlan, stage: str) -> None:
        if self.failing.pop((plan.step_id, stage), None):
            raise RuntimeError(f"{stage} of step {plan.step_id} fails")

    def row_errors(self, plan: StepPlan) -> list[tuple[int, ChairliftError]]:
        row = self.bad_rows.pop(plan.step_id, None)
        return [] if row is None else [(row % plan.num_rows, SamplingFailed("chosen to fail"))]

    @rule(
        prefix=integers(0, 2), length=integers(0, 20), more=integers(1, 12), outputs=integers(1, 20),
        stop=sampled_from([(), (7, 8, 9)]), tenant=sampled_from(["", "other"]),
        timeout=none() | sampled_from([0.5, 3.0]), priority=integers(-2, 2), n=sampled_from([1, 1, 2, 5]),
        prompt_logprobs=sampled_from([None, None, 0]), delivered=none() | lists(integers(0, 20), max_size=5),
        pooling=sampled_from(["", "", "", "last", "mean"]), boundaries=lists(integers(0, 32), max_size=3),
        adapter=sampled_from(["", "", "a", "b"]),
    )  # fmt: skip
    def submit(
        self, prefix: int, length: int, more: int, outputs: int, stop: tuple[int, ...], tenant: str,
        timeout: float | None, priority: int, n: int, prompt_logprobs: int | None, delivered: list[int] | None,
        pooling: str, boundaries: list[int], adapter: str,
    ) -> None:  # fmt: skip
        number = len(self.harness.requests)
        rng = random.Random(number)
        prompt = [(prefix * 7 + position) % 40 for position in range(length)] + [rng.randrange(50) for _ in range(more)]
        outputs = 1 if pooling else min(outputs, LONGEST - len(prompt))
        self.may_differ = self.may_differ or timeout is not None
        if pooling:
            n, prompt_logprobs = 1, None
        request = make_request(
            str(number), prompt, outputs, stop=stop, tenant=tenant, timeout=timeout, priority=priority, n=n,
            seed=number, prompt_logprobs=prompt_logprobs, pooling=pooling,
            adapter=self.versions.version(adapter),
            prefix_boundaries=tuple(min(boundary, len(prompt)) for boundary in boundaries),
        )  # fmt: skip
        if delivered is not None and not pooling:  # resume the outputs that a stopped engine delivered
            full = [expected_outcome(request, self.harness.fake, index)[0] for index in range(n)]
            cut = [tuple(tokens[:count]) for tokens, count in zip(full, delivered, strict=False)]
            request = replace(request, resume=tuple(cut))
        self.harness.submit(request)

    @precondition(lambda self: not self.harness.loop.is_idle)
    @rule(times=integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            if not self.harness.loop.is_idle:
                self.harness.step()

    @precondition(lambda self: self.harness.requests)
    @rule(choice=data(), index=none() | integers(0, 2))
    def abort(self, choice: DataObject, index: int | None) -> None:
        name, scheduler = choice.draw(sampled_from(sorted(self.harness.requests))), self.harness.scheduler
        is_open = name in scheduler.sequence_groups if index is None else seq_id_of(name, index) in scheduler.sequences
        self.may_differ = self.may_differ or is_open
        assert (self.harness.abort(name, index) is not None) == is_open

    @rule(running=integers(1, 6), tokens=integers(1, 64), share=sampled_from([0.0, 0.3, 1.0]))
    def set_limits(self, running: int, tokens: int, share: float) -> None:
        scheduler = self.harness.scheduler
        bounds = LimitsConfig.of(scheduler.config, scheduler.limits)
        lowest, highest = bounds.lowest.num_blocks, bounds.highest
        scheduler.table.set_limits(EngineLimits(
            max_running_requests=min(running, highest.max_running_requests),
            max_batch_tokens=min(max(tokens, running), highest.max_batch_tokens),
            num_blocks=lowest + int(share * (highest.num_blocks - lowest)),
        ))  # fmt: skip

    @rule(name=sampled_from(["a", "b"]), content=integers(0, 1))
    def reload_adapter(self, name: str, content: int) -> None:
        self.versions.reload(name, content)

    @rule()
    def drop_adapters(self) -> None:
        self.versions.drop_unused()

    @rule(seconds=sampled_from([0.1, 0.3, 1.0]))
    def advance(self, seconds: float) -> None:
        self.harness.clock.advance(seconds)

    @rule(stage=sampled_from(["launch", "collect"]), steps=lists(integers(0, 4), min_size=1, max_size=3))
    def fail(self, stage: str, steps: list[int]) -> None:
        self.may_differ = True
        for ahead in steps:
            self.failing[self.harness.scheduler._steps + ahead, stage] = True

    @rule(row=integers(0, 8), ahead=integers(0, 3))
    def fail_a_row(self, row: int, ahead: int) -> None:
        self.may_differ = True
        self.bad_rows[self.harness.scheduler._steps + ahead] = row

    @rule()
    def flush(self) -> None:
        self.harness.cache.evict_all()

    @invariant()
    def check_integrity_and_order(self) -> None:
        if not hasattr(self, "harness"):
            return
        scheduler = self.harness.scheduler
        assert scheduler.check_integrity() == []
        assert scheduler.waiting_tokens == sum(len(sequence.token_ids) for sequence in scheduler.waiting)
        order = list(scheduler.waiting)
        assert len(set(order)) == len(order) == len(scheduler.waiting), (
            "a sequence is in the waiting queue twice or not at all"
        )
        if scheduler.config.scheduling_policy == "fifo":
            assert order == sorted(order, key=lambda each: each.arrival_index), "a sequence lost its place in the queue"

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            try:
                self.harness.drain()
                self.harness.check_outputs(no_faults=not self.may_differ)
            finally:
                self.harness.close()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=1500 if FULL else 30, stateful_step_count=50)
