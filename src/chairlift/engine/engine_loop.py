"""EngineLoop: expires, schedules, launches, collects and commits; one call of step() is one engine step.

The loop has no thread of its own: client/inline.py and ipc/ (in another process) call step(), and tests do so directly.
"""

import logging
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.engine_output import EngineOutput
from chairlift.core.errors import ChairliftError, ConfigError, EngineDead
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.engine.batch_recorder import BatchRecorder
from chairlift.engine.batch_snapshot import BatchSnapshot
from chairlift.engine.config import AUTO_METHOD, DRAFT_MODEL_METHOD, OFF_METHOD, CacheConfig, SchedulerConfig
from chairlift.engine.drafters.base import Drafter
from chairlift.engine.drafters.draft_model import MAX_STEP_TOKENS, DraftModelDrafter
from chairlift.engine.drafters.registry import make_drafters
from chairlift.engine.kv.cache_trimmer import CacheTrimmer
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import ValidatedRequest
from chairlift.engine.runner.base import (
    AdapterInfo,
    FailsBetweenSteps,
    ReleasesBlocks,
    RenewsThreads,
    ReportsDeviceMemory,
    Runner,
    RunnerInfo,
    adapter_loader,
)
from chairlift.engine.runner.threaded import ThreadedRunner
from chairlift.engine.scheduler.engine_limits import LimitsConfig
from chairlift.engine.scheduler.in_flight_step import InFlightStep
from chairlift.engine.scheduler.limit_tuner import LimitTuner
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.state_checkpoint_planner import can_save_drafts
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.step_stats import StepStats
from chairlift.engine.structured.grammar_matcher import GrammarMatcher
from chairlift.engine.structured.mask_worker import MaskWorker

log = logging.getLogger(__name__)

MEMORY_SECONDS = 1.0
"""Seconds between two readings of the memory of the runner's device."""


class EngineLoop:
    """Runs one engine: a scheduler and its runner. Every method belongs to one thread.

    Attributes:
        on_step: called with the stats of each committed step, before its outputs go out; may be set at any time.
        step_started_at: monotonic seconds at which the step in progress started; None between steps.
        warmup_started_at: the same for a warm-up.
    """

    def __init__(
        self, runner: Runner, config: SchedulerConfig, *, enable_prefix_caching: bool = True,
        clock: Clock | None = None, on_step: Callable[[StepStats], None] | None = None, threaded: bool = True,
        draft_runner: Runner | None = None,
    ) -> None:  # fmt: skip
        """Hold the parts; nothing runs before start(). `draft_runner` is that of the method "draft_model".

        With config.overlap the runner works in a thread. With `threaded` False, or if it says that it is asynchronous,
        it does not: its launch() itself returns before the step is done.
        """
        self._runner, self._threaded = runner, threaded
        self._draft_runner = draft_runner
        self._draft_model: DraftModelDrafter | None = None
        self._config = config
        self._caching = enable_prefix_caching
        self._clock = clock or SystemClock()
        self.on_step = on_step
        self._step_times: dict[int, tuple[float, float, float]] = {}  # by step_id: start, scheduled, launched
        self._zero = time.perf_counter()
        self._mask_worker = MaskWorker()
        self.step_started_at: float | None = None
        self.warmup_started_at: float | None = None
        self.info: RunnerInfo
        self.limits: RequestLimits
        self.scheduler: Scheduler
        self._limit_tuner: LimitTuner | None = None
        self._cache_trimmer: CacheTrimmer | None = None
        self._has_unreleased_blocks = False
        self._device_memory, self._memory_read_at = (0, 0), -math.inf
        self._batch_recorder: BatchRecorder | None = None

    def start(self, scheduler: Scheduler | None = None) -> RunnerInfo:
        """Start the runner and build the scheduler for its RunnerInfo.

        A `scheduler` that exists already is used instead. Raises ConfigError if its cache has other blocks than the
        runner, and for a draft model that cannot be used.
        """
        # The draft model first: the runner's cache then gets what is left of the memory.
        draft_info = self._start_draft_model()
        info = self._runner.start()
        if draft_info is not None:
            info = replace(info, startup_report=(*info.startup_report, *_draft_report(draft_info)))
        self.info = info
        can_release = isinstance(self._runner, ReleasesBlocks)
        self._zero = time.perf_counter()
        self._config = self._config.with_runner_defaults(
            info.preferred_prefill_tokens, overlap=info.is_asynchronous, max_running_requests=info.max_running_requests
        )
        if self._config.overlap and self._threaded and not info.is_asynchronous:
            self._runner = threaded = ThreadedRunner(self._runner)
            threaded.start_thread()
        self.limits = RequestLimits.from_config(self._config, info)
        self._mask_worker = MaskWorker(info.busy_cpus, runner_idles=self._config.max_in_flight_steps == 1)
        cache = CacheConfig(
            num_blocks=info.num_blocks, block_size=info.block_size, windows=info.windows,
            enable_prefix_caching=self._caching, model_id=info.model_id, max_cached_blocks=info.max_cached_blocks,
            has_state=info.has_state, num_state_checkpoints=info.num_state_checkpoints,
        )  # fmt: skip
        if scheduler is not None:
            _check_cache(scheduler.cache.config, cache)
            self.limits = scheduler.limits
        self.scheduler = scheduler or Scheduler(self._config, KVCacheManager(cache), self.limits)
        self.info = info = self._use_drafters(info, draft_info)
        if self._config.tune_limits:
            self._limit_tuner = LimitTuner(LimitsConfig.of(self._config, self.limits))
        elif info.max_cached_blocks is not None and can_release:
            self._cache_trimmer = CacheTrimmer(self.scheduler.cache.pool, info.max_cached_blocks)
        return info

    def _start_draft_model(self) -> RunnerInfo | None:
        """Start the runner of the draft model, if the method needs it. Raises ConfigError."""
        if self._config.speculation.method != DRAFT_MODEL_METHOD:
            self._draft_runner = None
            return None
        if self._draft_runner is None:
            raise ConfigError(
                f"method {DRAFT_MODEL_METHOD!r} of speculation needs an engine that loads both models; this model was "
                "loaded before; choose another method", option="speculative_config",
            )  # fmt: skip
        info = self._draft_runner.start()
        if info.has_state:
            raise ConfigError(
                "the draft model has layers that keep a state, which cannot be taken back behind a rejected draft; "
                "choose one whose layers are all attention", option="speculative_config",
            )  # fmt: skip
        return info

    def _use_drafters(self, info: RunnerInfo, draft_info: RunnerInfo | None) -> RunnerInfo:
        """Give the scheduler the drafters of the method; returns `info` with the startup report's line about it."""
        config = self._config.speculation
        if not info.no_drafts_reason and info.has_state and not can_save_drafts(self.scheduler.cache.config):
            reason = "the model's layers keep a state, and there is no memory for the states behind drafts"
            info = replace(info, no_drafts_reason=reason)
        if drafters := () if info.no_drafts_reason else self._make_drafters(info, draft_info):
            self.scheduler.use_drafters(drafters, config.num_speculative_tokens)
            line = f"{config.method}: up to {config.num_speculative_tokens} drafts of a sequence in a step"
        elif config.method != OFF_METHOD:
            line = f"off: {info.no_drafts_reason}"
            if config.method != AUTO_METHOD:
                log.warning("speculative decoding by method %s is off: %s", config.method, info.no_drafts_reason)
            if self._draft_runner is not None:
                self._draft_runner.stop()
        else:
            line = f"off: the method is {config.method}"
        return replace(info, startup_report=(*info.startup_report, ("speculative decoding", line)))

    def _make_drafters(self, info: RunnerInfo, draft_info: RunnerInfo | None) -> tuple[Drafter, ...]:
        """Make the drafters of the method."""
        drafters = make_drafters(self._config.speculation)
        if self._draft_runner is None or draft_info is None:
            return drafters
        self._draft_model = DraftModelDrafter(
            self._draft_runner, draft_info, max_sequences=min(self._config.max_running_requests, MAX_STEP_TOKENS),
            enable_prefix_caching=self._caching and draft_info.block_size == info.block_size,
        )  # fmt: skip
        return (*drafters, self._draft_model)

    def watch_runner(self, post: Callable[[Callable[[], None]], object]) -> None:
        """Raise a failure of the runner between two steps in the engine's thread; `post` queues a function for it."""

        def fail(error: EngineDead) -> None:
            def raise_error() -> None:
                raise error

            post(raise_error)

        if isinstance(self._runner, FailsBetweenSteps):
            self._runner.on_failure(fail)

    def stop(self) -> None:
        """Stop the runner, and that of a draft model."""
        try:
            self._runner.stop()
        finally:
            self._mask_worker.stop()
            if self._draft_runner is not None:
                self._draft_runner.stop()

    # -- intake ----------------------------------------------------------------------------------------------------

    def submit(
        self, validated: ValidatedRequest, grammars: Items[GrammarMatcher] = (), waited: float = 0.0
    ) -> list[EngineOutput]:
        """Queue a request, with a grammar for each choice or none; compiling them took `waited` seconds.

        Returns the outputs of choices that have finished already, or the last output of a rejected request.
        """
        try:
            return self.scheduler.add_request(validated, self._clock.now(), grammars, waited)
        except ChairliftError as error:
            return [EngineOutput.failed(validated.request, error)]

    def abort(self, request_id: str, index: int | None = None) -> EngineOutput | None:
        """Abort a request, or one choice of it; returns its last output, None when it is not open."""
        return self.scheduler.abort(request_id, self._clock.now(), index)

    def fail_all(self, error: ChairliftError) -> list[EngineOutput]:
        """End every open request with an error; returns their last outputs."""
        return self.scheduler.table.fail_all(error, self._clock.now())

    # -- adapters ----------------------------------------------------------------------------------------------------

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        """Load a LoRA adapter in the calling thread, which need not be the engine's: steps go on meanwhile.

        Raises ModelError for a folder that cannot be used, and ConfigError for a runner without adapters.
        """
        return adapter_loader(self._runner).load_adapter(number, folder)

    def drop_adapter(self, number: int) -> None:
        """Free an adapter that no open request has; no step may be in flight, because ended requests may be in it."""
        assert not self.scheduler.in_flight_steps, "collect the steps in flight first"
        adapter_loader(self._runner).drop_adapter(number)

    # -- one step --------------------------------------------------------------------------------------------------

    def step(self) -> list[EngineOutput]:
        """Run one engine step; returns the new outputs. Raises EngineDead when the runner cannot continue."""
        self.step_started_at = time.monotonic()
        try:
            outputs = self.scheduler.expire(self._clock.now())
            started_at = time.perf_counter()
            plan = self.scheduler.schedule(self._clock.now())
            if self._cache_trimmer is not None:
                self._cache_trimmer.count_held()
            if plan is not None:
                outputs += self.launch(plan, started_at)
            in_flight = self.scheduler.in_flight_steps
            # While another step may be in flight, the next one is scheduled before this one is collected.
            if in_flight and (plan is None or len(in_flight) >= self._config.max_in_flight_steps):
                outputs += self.collect()
            self.trim_cache()
            return outputs
        finally:
            self.step_started_at = None

    def trim_cache(self) -> float | None:
        """Return the memory of blocks that the last minutes did not need to the system.

        Returns the seconds after which an idle engine calls it again; None where nothing is left to return.
        """
        if (trimmer := self._cache_trimmer) is None or self.scheduler.in_flight_steps:
            return None
        if (moves := trimmer.trim(self._clock.now())) is not None and isinstance(self._runner, ReleasesBlocks):
            num_kept = self.scheduler.cache.pool.num_used
            released = self._runner.release_blocks(num_kept, moves)
            log.info("released %d bytes of unused KV blocks, %d blocks are left", released, num_kept)
        return trimmer.seconds_to_trim

    def launch(self, plan: StepPlan, started_at: float) -> list[EngineOutput]:
        """Launch the newest scheduled step, whose scheduling began at `started_at` of time.perf_counter().

        A step that fails is rolled back; returns the last output of a sequence that ran alone. Raises EngineDead.
        """
        scheduled = time.perf_counter()
        try:
            self._launch_with_masks(plan)
        except EngineDead:
            raise
        except Exception as error:
            log.warning("step %d failed at launch: %r", plan.step_id, error)
            return self._roll_back(plan, error)
        self._step_times[plan.step_id] = (started_at, scheduled, time.perf_counter())
        return []

    def _launch_with_masks(self, plan: StepPlan) -> None:
        """Launch a step; the token masks of its masked rows are computed meanwhile."""
        if not len(plan.masked_samples):
            self._runner.launch(plan)
            return
        with self._mask_worker.for_step(plan.masked_samples, self.scheduler.in_flight_steps[-1].mask_grammars) as masks:
            is_early = self._mask_worker.uses_engine_thread and masks.wait_briefly()
            if is_early:
                self._runner.supply_masks(plan.step_id, masks.result())
            self._runner.launch(plan)
            if not is_early:
                self._runner.supply_masks(plan.step_id, masks.result())

    def collect(self) -> list[EngineOutput]:
        """Commit the oldest launched step, or roll it back if it failed; returns the new outputs. Raises EngineDead."""
        scheduler, collect_started_at = self.scheduler, time.perf_counter()
        step = scheduler.in_flight_steps[0]
        try:
            result = self._runner.collect()
        except EngineDead:
            raise
        except Exception as error:
            log.warning("step %d failed: %r", step.plan.step_id, error)
            self._step_times.clear()
            # Later steps have read what the failed one should have written, so they are void; the newest goes first.
            while len(scheduler.in_flight_steps) > 1:
                scheduler.rollback(scheduler.in_flight_steps[-1].plan)
            return self._roll_back(step.plan, error)
        collected = time.perf_counter()
        max_tokens = scheduler.table.oom_backoff.max_tokens
        num_before = scheduler.counters.output_tokens
        outputs = scheduler.commit(result, self._clock.now())
        if (raised := scheduler.table.oom_backoff.max_tokens) != max_tokens:
            what = "any number of" if raised is None else f"at most {raised}"
            log.info("memory sufficed for many steps of at most %d tokens; the next have %s tokens", max_tokens, what)
        # While outputs are delivered and the next step is scheduled, masks need no time of their own.
        self._mask_worker.prefetch(step.open_grammars)
        timestamps = (*self._step_times.pop(step.plan.step_id), collect_started_at, collected, time.perf_counter())
        if self._batch_recorder is not None:
            self._record_batch(self._batch_recorder, step, timestamps)
        if (on_step := self.on_step) is None and self._limit_tuner is None:
            return outputs
        stats = self._stats(step, scheduler.counters.output_tokens - num_before, timestamps)
        if self._limit_tuner is not None:
            self._tune_limits(self._limit_tuner, step, stats)
        if on_step is not None:
            try:
                on_step(stats)
            except Exception:
                log.exception("the on_step callback raised; the engine continues")
        return outputs

    def _roll_back(self, plan: StepPlan, error: Exception) -> list[EngineOutput]:
        """Undo the newest step in flight, which failed; returns the last output of a sequence that ran alone."""
        outputs = self.scheduler.rollback(plan, error, self._clock.now())
        max_tokens = self.scheduler.table.oom_backoff.max_tokens
        if isinstance(error, MemoryError) and max_tokens is not None:
            log.warning(
                "out of memory in step %d, of %d tokens in %d sequences: the next steps have at most %d tokens",
                plan.step_id, plan.num_tokens, plan.num_rows, max_tokens,
            )  # fmt: skip
        return outputs

    def _tune_limits(self, tuner: LimitTuner, step: InFlightStep, stats: StepStats) -> None:
        """Pass a step to the tuner, and use the limits that it decides."""
        scheduler = self.scheduler
        decision = tuner.record(
            stats, step.scheduled_at, self._clock.now(), pool=scheduler.cache.counts(),
            cached_tokens=scheduler.counters.cached_tokens,
        )  # fmt: skip
        pool = scheduler.cache.pool
        # A step in flight may still read blocks of a sequence that has just finished.
        if self._has_unreleased_blocks and pool.usable == pool.limit and not scheduler.in_flight_steps:
            self._has_unreleased_blocks = False
            if isinstance(self._runner, ReleasesBlocks) and (released := self._runner.release_blocks(pool.limit)):
                log.info("released %d bytes of %d KV blocks above the limit", released, pool.total - pool.limit)
        if decision is None:
            return
        self._has_unreleased_blocks |= decision.limits.num_blocks < pool.limit
        before = scheduler.table.limits
        scheduler.table.set_limits(decision.limits)
        for name, reason in decision.reasons.items():
            log.info("limit %s: %d -> %d: %s", name, getattr(before, name), getattr(decision.limits, name), reason)

    def _stats(self, step: InFlightStep, num_outputs: int, timestamps: tuple[float, ...]) -> StepStats:
        scheduler, plan = self.scheduler, step.plan
        started_at, scheduled, launched, collect_started_at, collected, ended = (
            (timestamp - self._zero) * 1e3 for timestamp in timestamps
        )
        pool, cache, limits = scheduler.cache.pool, scheduler.cache, scheduler.table.limits
        checkpoints, counters = cache.checkpoints, scheduler.counters
        tensor_bytes, reserved_bytes = self._read_device_memory(timestamps[-1])
        return StepStats(
            step_id=plan.step_id, num_sequences=plan.num_rows, num_tokens=plan.num_tokens,
            num_prefill_tokens=step.num_prefill_tokens, num_outputs=num_outputs,
            context_tokens=plan.num_context_tokens, prefill_pairs=plan.num_prefill_pairs,
            running=len(scheduler.running), waiting=len(scheduler.waiting), free_blocks=pool.total - pool.held,
            allocated_kv_tokens=pool.held * cache.config.block_size,
            unused_kv_tokens=scheduler.unused_kv_tokens,
            preemptions=counters.preemptions,
            out_of_memory_steps=scheduler.table.oom_backoff.num_failures, in_flight=len(scheduler.in_flight_steps) + 1,
            schedule_ms=scheduled - started_at, launch_ms=launched - scheduled,
            collect_ms=collected - collect_started_at, commit_ms=ended - collected, started_ms=started_at,
            collect_started_ms=collect_started_at, max_running_requests=limits.max_running_requests,
            max_batch_tokens=limits.max_batch_tokens, usable_blocks=limits.num_blocks,
            device_tensor_bytes=tensor_bytes, device_reserved_bytes=reserved_bytes,
            state_checkpoint_hits=checkpoints.num_hits, state_checkpoint_saves=checkpoints.num_saves,
            state_checkpoint_evictions=checkpoints.num_evictions,
            drafts=counters.drafts, draft_tokens=counters.draft_tokens,
            confirmed_by_position=tuple(counters.confirmed_by_position),
        )  # fmt: skip

    def _read_device_memory(self, at: float) -> tuple[int, int]:
        """Return bytes of tensors and of reserved memory; `at` are seconds of time.perf_counter()."""
        if isinstance(self._runner, ReportsDeviceMemory) and at - self._memory_read_at >= MEMORY_SECONDS:
            self._device_memory, self._memory_read_at = self._runner.device_memory(), at
        return self._device_memory

    def collect_in_flight(self) -> list[EngineOutput]:
        """Collect the steps in flight without launching more; returns the new outputs."""
        outputs: list[EngineOutput] = []
        self.step_started_at = time.monotonic()
        try:
            while self.scheduler.in_flight_steps:
                outputs += self.collect()
        finally:
            self.step_started_at = None
        return outputs

    def warmup(self) -> float:
        """Run the runner's warm-up, with no step in flight; returns seconds. Raises the runner's errors."""
        assert not self.scheduler.in_flight_steps, "collect the steps in flight first"
        started_at = time.perf_counter()
        self.warmup_started_at = time.monotonic()
        try:
            self._runner.warmup()
            if self._draft_model is not None:
                self._draft_model.warmup()
        finally:
            self.warmup_started_at = None
        return time.perf_counter() - started_at

    def renew_threads(self) -> None:
        """Start the threads that compute anew, with the priority of the calling thread and no step in flight."""
        assert not self.scheduler.in_flight_steps, "collect the steps in flight first"
        self._mask_worker.stop()  # its thread starts again with the next masks
        if isinstance(self._runner, RenewsThreads):
            self._runner.renew_threads()

    # -- snapshots -------------------------------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """Whether steps are recorded for snapshots."""
        return self._batch_recorder is not None

    def batch_snapshot(self) -> BatchSnapshot:
        """Return the batch at this moment. Steps are recorded from the first call until the calls cease."""
        if self._batch_recorder is None:
            self._batch_recorder = BatchRecorder()
        return self._batch_recorder.snapshot(self.scheduler, self._clock.now())

    def _record_batch(self, recorder: BatchRecorder, step: InFlightStep, timestamps: tuple[float, ...]) -> None:
        """Record a step for the next snapshot, or stop recording when no snapshot is read any more."""
        if recorder.is_unread(self._clock.now()):
            self._batch_recorder = None
        else:
            recorder.record(step, timestamps[0], timestamps[-1])

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether step() would do nothing until a request is submitted."""
        return self.scheduler.is_idle

    def now(self) -> float:
        """Return the time of the clock by which requests are queued."""
        return self._clock.now()

    def check_integrity(self) -> list[str]:
        """Check blocks, slots and counters; logs and returns the errors."""
        errors = self.scheduler.check_integrity()
        if self._draft_model is not None:
            errors += self._draft_model.check_integrity()
        for error in errors:
            log.error("integrity: %s", error)
        return errors

    def load(self) -> LoadReport:
        """Return the load of this engine."""
        scheduler, counters = self.scheduler, self.scheduler.counters
        return LoadReport(
            state=ReplicaState.READY,
            waiting_requests=len(scheduler.waiting),
            waiting_tokens=scheduler.waiting_tokens,
            running_requests=len(scheduler.running),
            total_blocks=scheduler.cache.pool.total,
            free_blocks=scheduler.cache.pool.total - scheduler.cache.pool.held,
            steps=counters.steps,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            output_tokens=counters.output_tokens,
            finished_requests=sum(counters.finished_by_reason.values()),
            preemptions=counters.preemptions,
        )


def _draft_report(info: RunnerInfo) -> tuple[tuple[str, str], ...]:
    """Return what the startup report says of a draft model."""
    names = {"model", "dtype", "kv cache", "seconds to load"}
    return tuple((f"draft model: {name}", value) for name, value in info.startup_report if name in names)


def _check_cache(own: CacheConfig, runner: CacheConfig) -> None:
    """Raise ConfigError unless the runner has every block that a scheduler's cache may hand out."""
    if own.num_blocks > runner.num_blocks or (own.block_size, own.windows) != (runner.block_size, runner.windows):
        raise ConfigError(
            f"the cache has {own.num_blocks} blocks of {own.block_size} tokens and windows {list(own.windows)}, the "
            f"runner {runner.num_blocks} of {runner.block_size} and {list(runner.windows)}; make them equal",
            option="num_blocks",
        )
    if own.has_state != runner.has_state or own.num_state_checkpoints > runner.num_state_checkpoints:
        raise ConfigError(
            f"the cache has {own.num_state_checkpoints} checkpoints of states (has_state: {own.has_state}), the runner "
            f"{runner.num_state_checkpoints} (has_state: {runner.has_state}); make them equal",
            option="num_state_checkpoints",
        )
