"""FIFOScheduler, PrefillFirstScheduler: the engine's Scheduler under the names and calls of transformers' schedulers.

    add_waiting_request(state) ──► schedule_batch ──► state.update_and_check_completion(token) ──► finish_request

The tokens that the caller gave to the states of a batch are committed when the next batch is scheduled. A request whose
token is missing then runs again, as if it had not been in the batch.
"""

import random
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.engine_output import FinishReason
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.scheduler.batching_policy import DEFAULT_SAFETY_MARGIN
from chairlift.engine.scheduler.in_flight_step import InFlightStep
from chairlift.engine.sequence import SequenceStatus
from chairlift.engine.standalone_scheduler import StandaloneScheduler, limits_of
from chairlift.engine.step_result import StepResult
from chairlift.llm.transformers_compat.cache import PagedAttentionCache
from chairlift.llm.transformers_compat.request_state import GREEDY, RequestState
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.settings import ManagerSettings


@dataclass(frozen=True, slots=True)
class FutureRequestState:
    """A request's part of a scheduled batch.

    Attributes:
        state: the request.
        has_new_token: whether the batch ends with a new token of it.
        complete_blocks: blocks that the batch fills, by layer group.
        query_length: its tokens in the batch.
    """

    state: RequestState
    has_new_token: bool
    complete_blocks: dict[str, int]
    query_length: int


class BatchScheduler(StandaloneScheduler):
    """A Scheduler whose requests are RequestStates, and whose batches a caller runs.

    Attributes:
        paged_cache: the cache, with the blocks that its own callers allocated.
        settings: sampling parameters of requests without their own; greedy unless a processor sets others.
        seeds: source of seeds for requests without one.
        states: the open requests by id, in order of arrival.
    """

    def __init__(
        self, cache: KVCacheManager | PagedAttentionCache, config: SchedulerConfig, limits: RequestLimits | None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.paged_cache = cache if isinstance(cache, PagedAttentionCache) else PagedAttentionCache(cache)
        manager = self.paged_cache.manager
        super().__init__(config, manager, limits or limits_of(manager, config))
        self.settings: ManagerSettings = GREEDY
        self.seeds: random.Random = random.SystemRandom()
        self.states: dict[str, RequestState] = {}
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._to_cancel: set[str] = set()
        self._batch: InFlightStep | None = None
        self._num_committed: dict[str, int] = {}

    # -- intake ----------------------------------------------------------------------------------------------------

    def add_waiting_request(self, state: RequestState) -> None:
        """Queue a request, and each of its children as a request of its own.

        Raises InvalidRequest (or a subclass) if it can never be served, DuplicateRequestId, QueueFull.
        """
        children = state.children()
        for each in (state, *children):
            seed = self.seeds.getrandbits(63)
            self.add_request(each.to_request(self.limits, self.settings, seed), self._clock.now())
            self.states[each.request_id] = each
            self._num_committed[each.request_id] = 0

    def set_request_cancellation(self, request_id: str) -> None:
        """Mark a request to be cancelled before the next batch. Thread-safe."""
        with self._lock:
            self._to_cancel.add(request_id)

    def clear_cancelled_requests(self) -> list[RequestState]:
        """Remove the requests that were marked, and free their blocks; returns those that were open."""
        with self._lock:
            marked, self._to_cancel = self._to_cancel, set()
        removed = [state for name, state in self.states.items() if name in marked]
        for state in removed:
            state.status, state.finish_reason = RequestStatus.CANCELLED, str(FinishReason.ABORT)
            self.abort(state.request_id, self._clock.now())
            self.forget(state.request_id)
        return removed

    def request_is_cancelled(self, request_id: str) -> bool:
        """Return whether a request is marked to be cancelled, or not open."""
        return request_id in self._to_cancel or request_id not in self.states

    def finish_request(self, request_id: str) -> None:
        """Remove a request and free its blocks; does nothing for one that is not open."""
        group, state = self.sequence_groups.get(request_id), self.states.get(request_id)
        if group is not None and state is not None:
            is_whole = state.status is RequestStatus.FINISHED
            sequence = next(iter(group.open.values()))
            new = state.generated_tokens[self._num_committed[request_id] :]
            sequence.token_ids += new
            self.counters.output_tokens += len(new)
            reason = FinishReason.ABORT
            if is_whole and state.generated_tokens:
                reason = FinishReason.STOP if state.generated_tokens[-1] in state.eos_token_id else FinishReason.LENGTH
            self.table.finish(sequence, reason, self._clock.now())
            state.finish_reason = str(reason)
        self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """Drop the state of a request that has ended, and the blocks that a caller allocated for it."""
        self.states.pop(request_id, None)
        self._num_committed.pop(request_id, None)
        self.paged_cache.free_blocks(request_id)

    # -- batches ---------------------------------------------------------------------------------------------------

    def schedule_batch(self, token_budget: int, cache_budget: int | None = None) -> Any:
        """Schedule the next batch.

        Args:
            token_budget: tokens of the batch; each decoding request has one even if the budget is smaller.
            cache_budget: accepted; a batch may read any number of cached tokens.

        Returns the requests of the batch. With a cache_budget, as in newer versions of transformers: their parts as
        FutureRequestState, or None when no open request has room; whether every request has one token; the tokens of
        the batch; and the cached tokens that it reads.
        """
        self.commit_batch()
        limits = self.table.limits
        self.table.set_limits(replace(limits, max_batch_tokens=max(1, token_budget)))
        try:
            plan = self.schedule(self._clock.now())
        finally:
            self.table.set_limits(limits)
        parts: list[FutureRequestState] = []
        if plan is not None:
            self._batch = self.in_flight_steps[-1]
            parts = [self._part(row) for row in range(plan.num_rows)]
        if cache_budget is None:
            return [part.state for part in parts]
        if plan is None:
            return (None if self.states else []), False, 0, 0
        is_decode = all(part.query_length == 1 for part in parts)
        return parts, is_decode, plan.num_tokens, int(plan.start_positions.sum())

    def _part(self, row: int) -> FutureRequestState:
        assert self._batch is not None
        step = self._batch
        sequence, start, end, sample = step.sequences[row], step.starts[row], step.ends[row], step.sample_indices[row]
        state = self.states[sequence.request_id]
        state.follow(sequence, start, end, is_sampled=sample >= 0)
        size = self.cache.config.block_size
        complete = end // size - start // size
        groups = {str(group): complete for group in range(len(self.cache.layouts))} if complete else {}
        return FutureRequestState(state, sample >= 0, groups, end - start)

    def commit_batch(self) -> None:
        """Commit the tokens that the states of the last batch were given; does nothing without a batch."""
        step, self._batch = self._batch, None
        if step is None or step not in self.in_flight_steps:
            return
        tokens: list[int] = []
        bounds = [0]
        missing = []
        for sequence, sample in zip(step.sequences, step.sample_indices, strict=True):
            if sample < 0:
                continue
            state = self.states.get(sequence.request_id)
            new = [] if state is None else state.generated_tokens[self._num_committed[state.request_id] :][:1]
            if state is not None and not new:
                missing.append(sequence)
            tokens += new
            bounds.append(len(tokens))
        if missing and not tokens:
            self.rollback(step.plan)
            return
        for sequence in missing:
            if sequence.status is SequenceStatus.RUNNING:
                self.table.preempt(sequence, self._clock.now())
        result = StepResult(step.plan.step_id, np.array(tokens, np.int32), np.array(bounds, np.int32))
        for output in self.commit(result, self._clock.now()):
            if output.request_id in self._num_committed:
                self._num_committed[output.request_id] += len(output.token_ids)
            if output.is_final and (ended := self.states.get(output.request_id)) is not None:
                ended.status, ended.finish_reason = RequestStatus.FINISHED, str(output.finish_reason)
                self.forget(output.request_id)

    # -- state -----------------------------------------------------------------------------------------------------

    def has_pending_requests(self) -> bool:
        """Return whether a request is open."""
        return bool(self.states)

    @property
    def active_requests(self) -> dict[str, RequestState]:
        """The requests that hold blocks, by id."""
        running = {sequence.request_id for sequence in self.running.values()}
        return {name: state for name, state in self.states.items() if name in running}

    @property
    def waiting_requests(self) -> dict[str, RequestState]:
        """The requests that wait, by id."""
        running = {sequence.request_id for sequence in self.running.values()}
        return {name: state for name, state in self.states.items() if name not in running}

    @property
    def waiting_requests_order(self) -> deque[str]:
        """The ids of the waiting requests in the order in which they will start."""
        return deque(sequence.request_id for sequence in self.waiting)

    def get_active_request_static_outputs(self, request_id: str) -> list[int]:
        """Return the output tokens of a request that holds blocks; none for another one."""
        state = self.active_requests.get(request_id)
        return [] if state is None else state.generated_tokens

    @property
    def safety_margin(self) -> float:
        """The share of free blocks below which only decoding requests are scheduled."""
        return self.config.safety_margin or 0.0

    @property
    def max_requests_per_batch(self) -> int:
        """The most requests that hold blocks at once."""
        return self.config.max_running_requests


class FIFOScheduler(BatchScheduler):
    """Schedules decodes first, then prompts in order of arrival while enough blocks are free."""

    def __init__(
        self, cache: KVCacheManager | PagedAttentionCache, config: SchedulerConfig | float | None = None,
        max_requests_per_batch: float | None = None, *, limits: RequestLimits | None = None,
        safety_margin: float | None = None, retain_cache_on_finish: bool = False, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """Create a scheduler for a KV cache.

        Args:
            cache: the KV cache.
            config: the other limits of a step; its batching and safety margin are replaced. A number is the safety
                margin, the second argument of transformers' scheduler, and a bool retain_cache_on_finish.
            max_requests_per_batch: requests that hold blocks at once; a float is the safety margin, the third argument
                in older versions of transformers.
            limits: limits of a request; None for what the cache itself can hold.
            safety_margin: share of free blocks below which only decoding requests are scheduled, 0 to less than 1; None
                for 0.2.
            retain_cache_on_finish: accepted; blocks of requests that ended are always kept until they are needed.
            clock: measures waits.

        Raises ConfigError for a margin out of range.
        """
        own, margin = _limits_of_step(config, max_requests_per_batch, safety_margin)
        margin = DEFAULT_SAFETY_MARGIN if margin is None else margin
        super().__init__(cache, replace(own, batching_policy="fifo", safety_margin=margin), limits, clock)


class PrefillFirstScheduler(BatchScheduler):
    """Schedules prompts first and decodes with the rest, but never delays decodes for long."""

    def __init__(
        self, cache: KVCacheManager | PagedAttentionCache, config: SchedulerConfig | float | None = None,
        max_requests_per_batch: float | None = None, *, limits: RequestLimits | None = None,
        safety_margin: float | None = None, retain_cache_on_finish: bool = False, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """Create a scheduler; see FIFOScheduler. The safety margin is accepted and has no effect."""
        own, _ = _limits_of_step(config, max_requests_per_batch, safety_margin)
        super().__init__(cache, replace(own, batching_policy="prefill_first", safety_margin=None), limits, clock)


SCHEDULER_MAPPING: dict[str, type[FIFOScheduler] | type[PrefillFirstScheduler]] = {
    "fifo": FIFOScheduler, "prefill_first": PrefillFirstScheduler
}  # fmt: skip
"""Scheduler of each scheduler_type."""


def _limits_of_step(
    config: SchedulerConfig | float | None, third: Any, safety_margin: float | None
) -> tuple[SchedulerConfig, float | None]:
    """Return the limits of a step and the safety margin, from transformers' arguments and ours."""
    own = config if isinstance(config, SchedulerConfig) else SchedulerConfig()
    if isinstance(config, int | float) and not isinstance(config, bool):
        safety_margin = float(config)
    if isinstance(third, float):
        safety_margin = third
    elif third is not None:
        own = replace(own, max_running_requests=third)
    return own, safety_margin
