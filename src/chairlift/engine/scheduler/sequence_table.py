"""SequenceTable: holds the waiting, running and deferred sequences of an engine and moves them between these states.

open ──► deferred ──enqueue──► waiting ──start_running──► running ──finish──► finished
                                  ▲                          │
                                  └─────────preempt──────────┘
"""

from collections.abc import Callable, Iterable

from chairlift.core.engine_output import EngineOutput, FinishReason, TokenLogprob
from chairlift.core.errors import ChairliftError
from chairlift.core.request_timeline import Timeline
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_counters import Counters
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, PrefixHit
from chairlift.engine.queue_wait_by_reason import QueueWaitClock
from chairlift.engine.scheduler.engine_limits import EngineLimits
from chairlift.engine.scheduler.oom_backoff import OOMBackoff
from chairlift.engine.scheduler.waiting_queue.base import make_waiting_queue
from chairlift.engine.sequence import Sequence, SequenceId, SequenceStatus
from chairlift.engine.sequence_group import SequenceGroup


class SequenceTable:
    """Holds the lists of one engine; decides nothing.

    Attributes:
        waiting: the waiting queue, in the policy's order.
        running: running sequences by arrival_index, in the order in which they started.
        sequences: all open sequences by seq_id.
        groups: open requests by request_id.
        wait_clock: why the waiting queue does not advance.
        counters: totals.
        num_structured: open sequences with a grammar.
        released_slots: slots that the next plan must release in the runner.
        pending_outputs: last outputs that the engine loop has not fetched yet.
        waiting_tokens: tokens of waiting sequences, still to be computed.
        oom_backoff: bounds a step after one that ran out of memory.
        on_removed: called with each sequence that has ended, in any way; or None.
    """

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager) -> None:
        self._max_running = config.max_running_sequences
        self._cache = cache
        self.waiting = make_waiting_queue(config, cache)
        self.running: dict[int, Sequence] = {}
        self.sequences: dict[SequenceId, Sequence] = {}
        self.groups: dict[str, SequenceGroup] = {}
        self.wait_clock = QueueWaitClock()
        self.counters = Counters()
        self.num_structured = 0
        self.released_slots: list[int] = []
        self.pending_outputs: list[EngineOutput] = []
        self.waiting_tokens = 0
        self.oom_backoff = OOMBackoff()
        self.on_removed: Callable[[Sequence], None] | None = None
        self._free_slots = list(reversed(range(config.max_running_sequences)))
        self.limits = EngineLimits(
            max_running_requests=config.max_running_sequences, max_batch_tokens=config.max_batch_tokens,
            num_blocks=cache.pool.total,
        )  # fmt: skip

    def set_limits(self, limits: EngineLimits) -> None:
        """Use these limits from the next step on; sequences that run beyond them go on."""
        self.limits = limits
        self._cache.pool.set_limit(limits.num_blocks)

    @property
    def batch_token_limit(self) -> int:
        """Tokens of the next step: each running sequence may have one, unless memory is short."""
        return self.oom_backoff.bound(max(self.limits.max_batch_tokens, len(self.running)))

    @property
    def running_limit(self) -> int:
        """Running sequences with which no more are started."""
        return self.oom_backoff.bound(self.limits.max_running_requests)

    def add_group(self, group: SequenceGroup, now: float) -> None:
        """Add a request; one choice is queued, the others are deferred until it has computed the prompt."""
        self.groups[group.request.request_id] = group
        deferred = set(group.deferred)
        for sequence in group.open.values():
            self.sequences[sequence.seq_id] = sequence
            self.num_structured += sequence.grammar is not None
            if sequence in deferred:
                sequence.status = SequenceStatus.DEFERRED
            else:
                self.enqueue(sequence, now)

    def enqueue_deferred(self, group: SequenceGroup, now: float) -> None:
        """Move deferred choices whose prompt is computed to the waiting queue."""
        for sequence in group.pop_ready():
            self.enqueue(sequence, now)

    def match(self, sequence: Sequence) -> PrefixHit:
        """Return a waiting sequence's computed prefix, from the cache or another choice of its request."""
        if sequence.needs_whole_prompt:
            return self._cache.no_hit
        hit = self._cache.match(sequence.block_hashes, len(sequence.token_ids))
        group = self.groups[sequence.request_id]
        # A state exists only where it was saved, so a choice cannot take over the blocks of another one without it.
        may_fork = len(group.open) > 1 and not self._cache.config.has_state
        source = group.fork_source(sequence) if may_fork else None
        # The prompt's last token stays to be computed: its logits give the choice's first token.
        if source is not None and hit.num_tokens < sequence.num_prompt_tokens - 1:
            assert source.table is not None
            fork = self._cache.fork(source.table, sequence.num_prompt_tokens - 1)
            return fork if fork.num_tokens > hit.num_tokens else hit
        return hit

    def enqueue(self, sequence: Sequence, now: float) -> None:
        """Put a sequence into the waiting queue, at its place of arrival."""
        sequence.status = SequenceStatus.WAITING
        sequence.timeline_recorder.enqueued(self.wait_clock, now)
        self.waiting.add(sequence)
        self.waiting_tokens += len(sequence.token_ids)

    def _dequeue(self, sequence: Sequence, now: float) -> None:
        sequence.timeline_recorder.dequeued(self.wait_clock, now)
        self.waiting.remove(sequence)
        self.waiting_tokens -= len(sequence.token_ids)

    def start_running(self, sequence: Sequence, now: float) -> None:
        """Move a sequence from waiting to running; its block table exists already."""
        self._dequeue(sequence, now)
        sequence.slot = self._free_slots.pop()
        sequence.is_in_runner = False
        sequence.status = SequenceStatus.RUNNING
        sequence.awaited_block_hash = None
        sequence.timeline_recorder.record("scheduled", now)
        self.running[sequence.arrival_index] = sequence

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Return a running sequence to its place in the waiting queue; its blocks may stay cached."""
        self._free(sequence)
        sequence.epoch += 1
        sequence.num_scheduled_tokens = sequence.num_computed_tokens = 0
        if sequence.pooled_states is not None:
            sequence.pooled_states.clear()
        sequence.num_preemptions += 1
        sequence.num_prefix_waits = 0
        # What were outputs is input now: with their hashes the restart can find its own blocks.
        if self._cache.config.enable_prefix_caching:
            sequence.update_block_hashes(self._cache.config.block_size)
        self.counters.preemptions += 1
        sequence.timeline_recorder.record("preempted", now)
        self.enqueue(sequence, now)

    def restart(self, sequence: Sequence) -> None:
        """Let a running sequence, whose state in the runner is lost, begin again with its cached prefix.

        No step may be in flight. It keeps its slot, and blocks that it must compute again are allocated anew.
        """
        assert sequence.table is not None
        self._cache.release(sequence.table, sequence.block_hashes)
        if self._cache.config.enable_prefix_caching:
            sequence.update_block_hashes(self._cache.config.block_size)
        hit = self.match(sequence)
        sequence.table = self._cache.allocate_table(
            hit, hit.num_tokens, sequence.block_hashes, sequence.checkpoint_positions
        )
        sequence.num_scheduled_tokens = sequence.num_computed_tokens = hit.num_tokens
        sequence.fast_path_end = 0
        if sequence.pooled_states is not None:
            sequence.pooled_states.clear()

    def fail(self, sequence: Sequence, error: ChairliftError, now: float) -> None:
        """Fail a sequence in the middle of a step; its last output goes to pending_outputs."""
        self.pending_outputs.append(self.finish(sequence, FinishReason.ERROR, now, error=error))

    def fail_all(self, error: ChairliftError, now: float) -> list[EngineOutput]:
        """Fail every open request; returns their last outputs."""
        # finish() ends all choices of a request with one of them.
        firsts = [next(iter(group.open.values())) for group in self.groups.values()]
        return [self.finish(first, FinishReason.ERROR, now, error=error) for first in firsts]

    def _free(self, sequence: Sequence) -> None:
        """Free blocks and slot of a running sequence; the only place that does."""
        assert sequence.table is not None
        del self.running[sequence.arrival_index]
        self._cache.release(sequence.table, sequence.block_hashes)
        sequence.table = None
        # A result that is still in flight must take the slow path of commit(), which compares epochs.
        sequence.fast_path_end = 0
        self.released_slots.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def finish(
        self, sequence: Sequence, reason: FinishReason, now: float, *, error: ChairliftError | None = None,
        tokens: tuple[int, ...] = (), logprobs: tuple[TokenLogprob, ...] = (), alone: bool = False,
        prompt_logprobs: tuple[TokenLogprob, ...] = (), embedding: bytes = b"",
    ) -> EngineOutput:  # fmt: skip
        """Finish a choice in any state and return its last output.

        An error or an abort finishes all choices of the request, unless `alone` is True.
        """
        group, name = self.groups[sequence.request_id], sequence.request_id
        timeline = self._remove(group, sequence, reason, error, now)
        if group.open and not alone and (reason is FinishReason.ERROR or reason is FinishReason.ABORT):
            for other in list(group.open.values()):
                self._remove(group, other, reason, error, now)
        usage = None
        if not group.open:
            usage = group.usage()
            del self.groups[name]
            self.counters.record_finish(reason)
        else:
            # The choice that computed the prompt may be the one that has ended: then another one has to.
            self.enqueue_deferred(group, now)
        return EngineOutput(
            name, tokens, logprobs, reason, error, usage, timeline, sequence.choice_index, prompt_logprobs, embedding
        )

    def _remove(
        self, group: SequenceGroup, sequence: Sequence, reason: FinishReason, error: ChairliftError | None, now: float
    ) -> Timeline:
        """Remove one choice from every list."""
        if sequence.status is SequenceStatus.RUNNING:
            self._free(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self._dequeue(sequence, now)
        else:
            group.deferred.remove(sequence)
        del self.sequences[sequence.seq_id]
        self.num_structured -= sequence.grammar is not None
        group.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason, sequence.error = reason, error
        if self.on_removed is not None:
            self.on_removed(sequence)
        sequence.timeline_recorder.record("finished", now, reason if error is None else error.code)
        return sequence.timeline_recorder.build()

    # -- integrity -----------------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Check lists, slots and counters of every sequence; return the errors."""
        return [*self._check_lists(), *self._check_counters(self.sequences.values())]

    def _check_lists(self) -> list[str]:
        errors = []
        slots = sorted([*self._free_slots, *(sequence.slot for sequence in self.running.values())])
        if slots != list(range(self._max_running)):
            errors.append(f"each slot must be free or in use once: {slots}")
        waiting = {sequence.seq_id for sequence in self.waiting}
        running = {sequence.seq_id for sequence in self.running.values()}
        deferred = {sequence.seq_id for group in self.groups.values() for sequence in group.deferred}
        everywhere = len(waiting) + len(running) + len(deferred)
        if everywhere != len(waiting | running | deferred) or waiting | running | deferred != set(self.sequences):
            errors.append(
                f"{len(waiting)} waiting, {len(running)} running, {len(deferred)} deferred"
                f" of {len(self.sequences)} open"
            )
        if len(waiting) != len(self.waiting):
            errors.append(f"the waiting queue counts {len(self.waiting)} sequences and holds {len(waiting)}")
        open_ids = {sequence.seq_id for group in self.groups.values() for sequence in group.open.values()}
        if open_ids != set(self.sequences):
            errors.append(f"{len(open_ids)} choices are open in {len(self.groups)} requests of {len(self.sequences)}")
        return errors

    def _check_counters(self, sequences: Iterable[Sequence]) -> list[str]:
        errors = []
        for sequence in sequences:
            name, running = sequence.seq_id, sequence.status is SequenceStatus.RUNNING
            if (
                not 0
                <= sequence.num_computed_tokens
                <= sequence.num_scheduled_tokens
                <= sequence.num_tokens_with_pending
            ):
                counters = f"{sequence.num_computed_tokens} <= {sequence.num_scheduled_tokens}"
                counters += f" <= {sequence.num_tokens_with_pending}"
                errors.append(f"{name}: counters out of order, not 0 <= {counters}")
            if running != (sequence.table is not None) or running != (sequence.slot >= 0):
                errors.append(f"{name}: {sequence.status.name} with table {sequence.table} and slot {sequence.slot}")
            if sequence.table is not None and sequence.num_scheduled_tokens > sequence.table.capacity:
                errors.append(
                    f"{name}: {sequence.num_scheduled_tokens} tokens scheduled into {sequence.table.capacity}"
                )
            if not running and sequence.num_scheduled_tokens:
                errors.append(f"{name}: waits with {sequence.num_scheduled_tokens} tokens scheduled")
        return errors
