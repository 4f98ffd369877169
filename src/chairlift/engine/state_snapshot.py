"""Snapshots: describe a scheduler and its cache for people, admin pages and tests."""

from itertools import chain, islice

from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.kv.state_checkpoint_pool import StateCheckpointPool
from chairlift.engine.queue_wait_by_reason import WaitReason
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler_and_cache_state import (
    CacheState,
    ChoiceSnapshot,
    SchedulerState,
    SequenceSnapshot,
    StateCheckpointState,
)
from chairlift.engine.sequence import Sequence, SequenceStatus

MAX_SEQUENCES = 500
"""Sequences that a state describes: describing one takes a few microseconds, between two steps of the engine."""


def wait_reason_of(sequence: Sequence, queue_reason: WaitReason) -> str:
    """Return why a waiting sequence waits; `queue_reason` is why the queue does not advance."""
    if sequence.timeline_recorder.waits_for_prefix:
        return WaitReason.PREFIX
    return queue_reason


def _wait_reason(sequence: Sequence, queue_reason: WaitReason) -> str:
    if sequence.status is SequenceStatus.DEFERRED:
        return WaitReason.PREFIX  # another choice computes the prompt
    return wait_reason_of(sequence, queue_reason) if sequence.status is SequenceStatus.WAITING else ""


def _describe(sequence: Sequence, queue_reason: WaitReason, now: float) -> SequenceSnapshot:
    drafts = sequence.draft_record
    return SequenceSnapshot(
        request_id=sequence.request_id,
        choice=sequence.choice_index,
        state=sequence.state,
        wait_reason=_wait_reason(sequence, queue_reason),
        age_seconds=round(max(0.0, now - sequence.timeline_recorder.queued_at), 3),
        prompt_tokens=sequence.num_prompt_tokens,
        output_tokens=sequence.num_output_tokens,
        computed_tokens=sequence.num_computed_tokens,
        cached_tokens=sequence.cached_tokens,
        preemptions=sequence.num_preemptions,
        confirmed_drafts=0 if drafts is None else drafts.num_confirmed,
        rejected_drafts=0 if drafts is None else drafts.num_rejected,
    )


def scheduler_state(scheduler: Scheduler, now: float) -> SchedulerState:
    """Return the waiting requests, in order, with reasons, and the state of every open request."""
    waiting = list(scheduler.waiting)
    reason = scheduler.wait_clock.reason
    counters = scheduler.counters
    return SchedulerState(
        waiting_requests=len(waiting),
        active_requests=len(scheduler.running),
        waiting_order=[sequence.request.request_id for sequence in waiting],
        wait_reasons={sequence.request.request_id: wait_reason_of(sequence, reason) for sequence in waiting},
        states={name: next(iter(group.open.values())).state for name, group in scheduler.sequence_groups.items()},
        choices={
            name: [
                ChoiceSnapshot(choice=index, state=each.state, wait_reason=_wait_reason(each, reason))
                for index, each in group.open.items()
            ]
            for name, group in scheduler.sequence_groups.items()
            if len(group.open) > 1
        },
        sequences=[
            _describe(each, reason, now) for each in islice(chain(scheduler.running.values(), waiting), MAX_SEQUENCES)
        ],
        in_flight=len(scheduler.in_flight_steps),
        max_in_flight=counters.max_in_flight,
        steps=counters.steps,
        preemptions=counters.preemptions,
        failed_steps=counters.failed_steps,
        finished_by_reason=dict(counters.finished_by_reason),
    )


def cache_state(cache: KVCacheManager) -> CacheState:
    """Return the block counts of the pool, and the counts of saved states of a model with layers that keep one."""
    counts = cache.counts()
    state = CacheState(
        total_blocks=counts.total,
        free_blocks=counts.free + counts.withheld,
        cached_blocks=counts.cached,
        allocated_blocks=counts.held,
        block_size=cache.config.block_size,
        memory_utilization=counts.held / counts.total,
        window_blocks_freed=cache.window_blocks_freed,
    )
    if cache.config.has_state:
        state["state_checkpoints"] = _checkpoint_state(cache.checkpoints)
    return state


def _checkpoint_state(pool: StateCheckpointPool) -> StateCheckpointState:
    counts = pool.counts()
    return StateCheckpointState(
        total=counts.total, free=counts.free, cached=counts.cached, held=counts.held, hits=pool.num_hits,
        saves=pool.num_saves, skipped_saves=pool.num_skipped_saves, evictions=pool.num_evictions,
    )  # fmt: skip
