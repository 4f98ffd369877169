"""EngineHarness: an engine on a fake model under a fake clock, with a check of every plan."""

import random
import threading
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from chairlift.core.clock import FakeClock
from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import ChairliftError, InvalidRequest
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.config import CacheConfig, SchedulerConfig, SpeculationConfig
from chairlift.engine.drafters.draft_model import DraftModelDrafter
from chairlift.engine.drafters.registry import make_drafters
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import ValidatedRequest, validate_request
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig, expected_embedding, expected_tokens
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.sequence import Sequence, SequenceId, SequenceStatus
from chairlift.engine.standalone_scheduler import StandaloneScheduler, limits_of
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.step_result import StepResult
from chairlift.engine.structured.grammar_matcher import GrammarMatcher
from support_audit import Audit
from support_drafters import ExpectedDrafter

TIMEOUT_SECONDS = 30
"""Timeout of a wait for an output, in seconds."""

Hook = Callable[[StepPlan, str], None]


def make_request(
    name: str, prompt: Items[int] | int, max_tokens: int = 4, *, stop: Items[int] = (), seed: int = 0, n: int = 1,
    prompt_logprobs: int | None = None, **options: Any,
) -> GenerateRequest:  # fmt: skip
    """Make a request, which is greedy unless it has several choices.

    A prompt given as a number n is the ids 1 to n.
    """
    ids = tuple(range(1, prompt + 1)) if isinstance(prompt, int) else tuple(prompt)
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.0 if n == 1 else 1.0, stop_token_ids=tuple(stop), seed=seed, n=n,
        prompt_logprobs=prompt_logprobs,
    )  # fmt: skip
    options.setdefault("request_id", name)
    return GenerateRequest(prompt_token_ids=ids, params=params.with_defaults({}, max_tokens=1, seed=0), **options)


def make_scheduler(
    *, num_blocks: int = 64, block_size: int = 4, windows: tuple[int | None, ...] = (None,), caching: bool = True,
    vocab_size: int = 1000, max_model_len: int = 512, num_state_checkpoints: int | None = None, **options: Any,
) -> StandaloneScheduler:  # fmt: skip
    """Make a scheduler without a loop and without a runner; with checkpoints for a model with states."""
    config = SchedulerConfig(**options)
    info = RunnerInfo(vocab_size=vocab_size, max_model_len=max_model_len, num_blocks=num_blocks,
                      block_size=block_size, windows=windows)  # fmt: skip
    cache = CacheConfig(
        num_blocks=num_blocks, block_size=block_size, windows=windows, enable_prefix_caching=caching,
        has_state=num_state_checkpoints is not None, num_state_checkpoints=num_state_checkpoints or 0,
    )  # fmt: skip
    return StandaloneScheduler(config, KVCacheManager(cache), RequestLimits.from_config(config, info))


def make_result(
    plan: StepPlan, token: int | Items[int] = 7, *, faults: Items[tuple[int, ChairliftError]] = ()
) -> StepResult:
    """Make the result of a plan: one token for all sample rows, or one for each."""
    rows = len(plan.sample_rows)
    tokens = [token] * rows if isinstance(token, int) else list(token)
    assert len(tokens) == rows
    bounds = np.arange(rows + 1, dtype=np.int32)
    return StepResult(plan.step_id, np.array(tokens, np.int32), bounds, row_errors=tuple(faults))


def run_step(scheduler: Scheduler, now: float = 0.0, token: int = 7) -> tuple[StepPlan, list[EngineOutput]]:
    """Schedule a step, which must be possible, and commit it with one token for all rows."""
    plan = scheduler.schedule(now)
    assert plan is not None, "no sequence can run"
    return plan, scheduler.commit(make_result(plan, token), now)


def rows_of(scheduler: Scheduler) -> dict[str, int]:
    """Return the request ids of the newest in-flight step and their number of tokens."""
    return {row.sequence.request.request_id: row.end - row.start for row in scheduler.in_flight_steps[-1].rows}


def seq_id_of(name: str, index: int) -> SequenceId:
    """Return the seq_id of a choice."""
    return (name, index) if index else name


def expected_outcome(request: GenerateRequest, fake: FakeConfig, index: int = 0) -> tuple[list[int], bool]:
    """Return all tokens that a choice gets, and whether it then fails at a poison or NaN token."""
    tokens = (
        [] if request.pooling
        else expected_tokens(
            request.prompt_token_ids, request.params, fake, request.eos_token_ids, index, request.adapter.digest
        )
    )  # fmt: skip
    bad_tokens = {fake.poison, fake.nan} - {None}
    if bad_tokens & set(request.prompt_token_ids):
        return [], True
    first = next((at for at, token in enumerate(tokens[:-1]) if token in bad_tokens), None)
    return (tokens, False) if first is None else (tokens[: first + 1], True)


class StrictRunner(FakeRunner):
    """A FakeRunner that records contract errors of plans.

    The engine treats such an error like a failed forward pass.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.contract_errors: list[BaseException] = []

    def launch(self, plan: StepPlan) -> None:
        try:
            super().launch(plan)
        except (AssertionError, LookupError) as error:
            self.contract_errors.append(error)
            raise


LARGE_LIMITS = limits_of(KVCacheManager(CacheConfig(num_blocks=4096, block_size=16)), SchedulerConfig())
"""The limits of a large cache, with any vocabulary."""


def validated(request: GenerateRequest) -> ValidatedRequest:
    """Validate a request against LARGE_LIMITS."""
    return validate_request(request, LARGE_LIMITS)


def submit(loop: EngineLoop, request: GenerateRequest, grammars: Items[GrammarMatcher] = ()) -> list[EngineOutput]:
    """Validate a request as a client does and submit it; a request that cannot be served has a failed output."""
    try:
        return loop.submit(validate_request(request, loop.limits), grammars)
    except InvalidRequest as error:
        return [EngineOutput.failed(request, error)]


class EngineHarness:
    """An EngineLoop over a FakeRunner; records all requests and their outputs."""

    def __init__(
        self, fake: FakeConfig, *, caching: bool = True, hook: Hook | None = None,
        row_errors: Callable[[StepPlan], list[tuple[int, ChairliftError]]] | None = None,
        keep_plans: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        self.fake = fake
        self.clock = FakeClock()
        runner_clock = (
            None if options.get("overlap") else self.clock
        )  # a runner in a thread would advance it at any time
        self.runner = StrictRunner(fake, clock=runner_clock, hook=hook, row_errors=row_errors)
        self.loop = EngineLoop(self.runner, SchedulerConfig(**options), clock=self.clock, enable_prefix_caching=caching)
        self.loop.start()
        self.scheduler = self.loop.scheduler
        self.cache = self.scheduler.cache
        self.audit = Audit(self.scheduler, keep_plans=keep_plans)
        self.requests: dict[str, GenerateRequest] = {}
        self.tokens: dict[SequenceId, list[int]] = {}
        self.ends: dict[SequenceId, FinishReason] = {}
        self.prompt_logprob_ids: dict[str, list[int]] = {}
        self.finals: dict[str, EngineOutput] = {}
        self._arrivals: dict[SequenceId, int] = {}
        self.drafter: ExpectedDrafter | None = None
        self.draft_model: DraftModelDrafter | None = None
        self.draft_runner: StrictRunner | None = None

    def use_drafter(self, rng: random.Random, *, wrong: float, max_drafts: int) -> None:
        """Let a drafter that knows the expected outputs propose tokens, each of them wrong with that probability."""

        def expected(sequence: Sequence) -> list[int]:
            return list(expected_outcome(sequence.request, self.fake, sequence.choice_index)[0])

        self.drafter = ExpectedDrafter(rng, cache(expected), self.fake.vocab_size, wrong)
        self.scheduler.use_drafters([self.drafter], max_drafts)
        self.audit.may_wait_for_samples = True

    def use_draft_model(
        self, fake: FakeConfig | None = None, *, max_drafts: int = 4, max_sequences: int = 32, hook: Hook | None = None
    ) -> DraftModelDrafter:  # fmt: skip
        """Let a second fake runner propose tokens: by default one that always agrees with the first."""
        fake = fake or replace(self.fake, poison=None, nan=None)
        self.draft_runner = runner = StrictRunner(fake, hook=hook)
        self.draft_model = DraftModelDrafter(
            runner, runner.start(), max_sequences=max_sequences,
            enable_prefix_caching=self.cache.config.enable_prefix_caching and fake.block_size == self.fake.block_size,
        )  # fmt: skip
        self.scheduler.use_drafters([self.draft_model], max_drafts)
        self.audit.may_wait_for_samples = True
        return self.draft_model

    def use_method(self, config: SpeculationConfig) -> None:
        """Let the drafters of a method propose tokens."""
        self.scheduler.use_drafters(make_drafters(config), config.num_speculative_tokens)
        self.audit.may_wait_for_samples = True

    def submit(self, *requests: GenerateRequest) -> None:
        for request in requests:
            assert request.request_id not in self.requests, "each request id is used once"
            self.requests[request.request_id] = request
            for index in range(request.params.num_choices):
                self.tokens[seq_id_of(request.request_id, index)] = list(request.resumed_tokens(index))
            self._record(submit(self.loop, request))
            if request.request_id in self.scheduler.sequence_groups:
                for sequence in self.scheduler.sequence_groups[request.request_id].open.values():
                    self._arrivals[sequence.seq_id] = sequence.arrival_index
                    if sequence.status is SequenceStatus.WAITING:
                        self.audit.record_enqueued(sequence)

    def abort(self, request_id: str, index: int | None = None) -> EngineOutput | None:
        output = self.loop.abort(request_id, index)
        self._record([] if output is None else [output])
        return output

    def step(self, times: int = 1) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        for _ in range(times):
            outputs += self.loop.step()
        self._record(outputs)
        return outputs

    def collect_in_flight(self) -> None:
        """Collect the steps in flight."""
        self._record(self.loop.collect_in_flight())

    def drain(self, limit: int = 20_000) -> None:
        """Step until no request is open, then check integrity and all outputs."""
        while not self.loop.is_idle:
            self.step()
            self.clock.advance(0.01)
            limit -= 1
            assert limit, f"still open: {list(self.scheduler.sequences)}"
        self.check_outputs()

    def close(self) -> None:
        self.loop.stop()

    def _record(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            name = output.request_id
            key = seq_id_of(name, output.choice_index)
            assert name not in self.finals, f"{name} got an output after its last one"
            assert key not in self.ends, f"{key} got an output after its end"
            self.tokens[key] += output.token_ids
            self.prompt_logprob_ids.setdefault(name, []).extend(entry.token_id for entry in output.prompt_logprobs)
            if output.finish_reason is not None:
                self.ends[key] = output.finish_reason
                if key in self._arrivals:
                    self.audit.forget(self._arrivals[key])
            if output.is_final:
                self._record_final(output)

    def _record_final(self, output: EngineOutput) -> None:
        name = output.request_id
        assert output.finish_reason is not None and output.usage is not None
        self.finals[name] = output
        keys = [seq_id_of(name, index) for index in range(self.requests[name].params.num_choices)]
        assert output.usage.completion_tokens == sum(len(self.tokens[key]) for key in keys)
        for key in keys:
            if key not in self.ends:
                assert output.finish_reason in {FinishReason.ERROR, FinishReason.ABORT}, "a choice has no end"
                if key in self._arrivals:
                    self.audit.forget(self._arrivals[key])

    def sequence(self, name: str) -> Sequence:
        return self.scheduler.sequences[name]

    def check_outputs(self, *, no_faults: bool = False) -> None:
        """Check integrity, and that every finished request got the right tokens.

        With no_faults (no aborts, timeouts or errors except poison and NaN), each request must also end as expected.
        """
        assert self.loop.check_integrity() == []
        assert self.runner.contract_errors == [], "a plan broke the runner's contract"
        if self.draft_model is not None and self.draft_runner is not None:
            assert self.draft_model.check_integrity() == []
            assert self.draft_runner.contract_errors == [], "a plan broke the contract of the draft model's runner"
        if self.loop.is_idle:
            assert set(self.finals) == set(self.requests), "a request got no last output"
            counts = self.cache.counts()
            assert counts.held == 0 and counts.free + counts.cached + counts.withheld == counts.total
            assert not self.cache._pending, "a block is pending and no sequence runs"
        for name, request in self.requests.items():
            self._check_tokens(request, self.finals.get(name), no_faults)

    def _check_tokens(self, request: GenerateRequest, final: EngineOutput | None, no_faults: bool) -> None:
        any_fails = False
        for index in range(request.params.num_choices):
            key, (tokens, fails) = seq_id_of(request.request_id, index), expected_outcome(request, self.fake, index)
            tokens_so_far, any_fails = self.tokens[key], any_fails or fails
            assert tokens_so_far == tokens[: len(tokens_so_far)], f"{key}: {tokens_so_far} instead of {tokens}"
            if self.ends.get(key) in {FinishReason.STOP, FinishReason.LENGTH}:
                assert tokens_so_far == tokens and not fails
        if final is None:
            return
        assert (final.finish_reason is FinishReason.ERROR) == isinstance(final.error, ChairliftError)
        if request.pooling and final.finish_reason is FinishReason.STOP:
            expected = expected_embedding(request.prompt_token_ids, request.pooling, self.fake, request.adapter.digest)
            assert np.allclose(np.frombuffer(final.embedding, np.float32), expected, atol=1e-6)
        else:
            assert not final.embedding
        if no_faults and request.request_id in self._arrivals:
            assert (final.finish_reason is FinishReason.ERROR) == any_fails, f"{request.request_id}: {final}"
            if request.params.num_choices == 1:
                assert self.tokens[request.request_id] == expected_outcome(request, self.fake)[0]
            all_resumed = all(map(request.resumed_tokens, range(request.params.num_choices)))
            if not any_fails and request.params.prompt_logprobs is not None and not all_resumed:
                assert self.prompt_logprob_ids[request.request_id] == list(request.prompt_token_ids[1:])


class NthCall:
    """A callable that counts its calls and raises at the n-th one."""

    def __init__(self, nth: int) -> None:
        self.nth, self.calls = nth, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.nth:
            raise RuntimeError(f"call {self.nth} fails")

    @property
    def was_reached(self) -> bool:
        return self.calls >= self.nth


def record_released_tables(scheduler: Scheduler) -> list[object]:
    """Record the tables that the cache releases from now on."""
    tables: list[object] = []
    release = scheduler.cache.release

    def record_release(table: object, hashes: object) -> None:
        tables.append(table)
        release(table, hashes)  # type: ignore[arg-type]

    scheduler.cache.release = record_release  # type: ignore[method-assign]
    return tables


def run_to_end(scheduler: Scheduler) -> None:
    while scheduler.sequences:
        run_step(scheduler)


class RequestSink:
    """A sink that records the outputs of one request and lets a test wait for them."""

    def __init__(self) -> None:
        self.calls: list[list[EngineOutput]] = []
        self.first_done = threading.Event()
        self.all_done = threading.Event()

    def __call__(self, outputs: list[EngineOutput]) -> None:
        self.calls.append(outputs)
        if any(output.finish_reason is not None for output in outputs):
            self.first_done.set()
        if any(output.is_final for output in outputs):
            self.all_done.set()

    def wait(self) -> EngineOutput:
        assert self.first_done.wait(TIMEOUT_SECONDS), "no last output came"
        return self.finals[0]

    def wait_for_last(self) -> EngineOutput:
        """Wait until all choices have finished."""
        assert self.all_done.wait(TIMEOUT_SECONDS), "the request did not end"
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
