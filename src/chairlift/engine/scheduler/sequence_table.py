"""Roster: who is in line, who rides in which slot, and the one door through which they leave.

open ──► held ──join_line──► line ──take_seat──► running ──finish──► gone
                               ▲                    │
                               └──────preempt───────┘
"""

from collections.abc import Iterable

from chairlift.core.errors import ChairliftError
from chairlift.core.request import EngineOutput, FinishReason, Timeline, TokenLogprob
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, PrefixHit
from chairlift.engine.scheduler.waiting_queue.base import make_waiting_queue
from chairlift.engine.sequence import Sequence, SequenceId, SequenceStatus
from chairlift.engine.sequence_group import SequenceGroup
from chairlift.engine.stats import Counters
from chairlift.engine.timeline import QueueWaitClock


class SequenceTable:
    """The lists of one engine; decides nothing.

    Attributes:
        line: who waits, in the policy's order.
        running: who rides, by arrival, in the order in which they boarded.
        sequences: everybody who is open, by key.
        families: requests that are open, by id.
        wait_clock: why the line stands still.
        counters: totals.
        num_grammars: how many of those who are open have one.
        released: slots that the runner has not been told to forget.
        ended: last Outputs that nobody has fetched yet.
        waiting_tokens: tokens in line, still to be computed.
    """

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager) -> None:
        self._seats = config.max_running_sequences
        self._cache = cache
        self.line = make_waiting_queue(config, cache)
        self.running: dict[int, Sequence] = {}
        self.sequences: dict[SequenceId, Sequence] = {}
        self.families: dict[str, SequenceGroup] = {}
        self.wait_clock = QueueWaitClock()
        self.counters = Counters()
        self.num_structured = 0
        self.released_slots: list[int] = []
        self.pending_outputs: list[EngineOutput] = []
        self.waiting_tokens = 0
        self._free_slots = list(reversed(range(config.max_running_sequences)))

    def add_group(self, family: SequenceGroup, now: float) -> None:
        """Take in a request; one choice of it joins the line, the others are held back until it has read the prompt."""
        self.families[family.request.request_id] = family
        held = set(family.deferred)
        for sequence in family.open.values():
            self.sequences[sequence.seq_id] = sequence
            self.num_structured += sequence.grammar is not None
            if sequence in held:
                sequence.status = SequenceStatus.DEFERRED
            else:
                self.enqueue(sequence, now)

    def enqueue_deferred(self, family: SequenceGroup, now: float) -> None:
        """Let those join the line who were held back and need not be any more."""
        for sequence in family.pop_ready():
            self.enqueue(sequence, now)

    def match(self, sequence: Sequence) -> PrefixHit:
        """Return what of a waiting sequence is computed already: in the cache, or by another choice of its request."""
        if sequence.needs_prompt_logprobs:
            return self._cache.no_hit
        hit = self._cache.match(sequence.block_hashes, len(sequence.token_ids))
        family = self.families[sequence.request_id]
        source = family.fork_source(sequence) if len(family.open) > 1 else None
        if source is not None and hit.num_tokens < sequence.num_prompt_tokens - 1:
            assert source.table is not None
            fork = self._cache.fork(source.table, sequence.num_prompt_tokens - 1)
            return fork if fork.num_tokens > hit.num_tokens else hit
        return hit

    def enqueue(self, sequence: Sequence, now: float) -> None:
        """Put a sequence in line, at its place of arrival."""
        sequence.status = SequenceStatus.WAITING
        sequence.timeline_recorder.enqueued(self.wait_clock, now)
        self.line.add(sequence)
        self.waiting_tokens += len(sequence.token_ids)

    def _dequeue(self, sequence: Sequence, now: float) -> None:
        sequence.timeline_recorder.dequeued(self.wait_clock, now)
        self.line.remove(sequence)
        self.waiting_tokens -= len(sequence.token_ids)

    def start_running(self, sequence: Sequence, now: float) -> None:
        """Move a sequence from the line to those that ride; its table is open already."""
        self._dequeue(sequence, now)
        sequence.slot = self._free_slots.pop()
        sequence.is_in_runner = False
        sequence.status = SequenceStatus.RUNNING
        sequence.awaited_block_hash = None
        sequence.timeline_recorder.record("scheduled", now)
        self.running[sequence.arrival_index] = sequence

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Send a riding sequence back to its place in line; what it computed may still be found in the cache."""
        self._free(sequence)
        sequence.epoch += 1
        sequence.num_scheduled_tokens = sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        sequence.num_prefix_waits = 0
        if self._cache.config.enable_prefix_caching:
            sequence.update_block_hashes(self._cache.config.block_size)
        self.counters.preemptions += 1
        sequence.timeline_recorder.record("preempted", now)
        self.enqueue(sequence, now)

    def fail(self, sequence: Sequence, error: ChairliftError, now: float) -> None:
        """End a sequence that cannot get on, in the middle of a step; its last Output is fetched with the next ones."""
        self.pending_outputs.append(self.finish(sequence, FinishReason.ERROR, now, error=error))

    def _free(self, sequence: Sequence) -> None:
        """The one door: blocks and slot leave a riding sequence."""
        assert sequence.table is not None
        del self.running[sequence.arrival_index]
        self._cache.release(sequence.table, sequence.block_hashes)
        sequence.table = None
        sequence.fast_path_end = 0
        self.released_slots.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def finish(
        self, sequence: Sequence, reason: FinishReason, now: float, *, error: ChairliftError | None = None,
        tokens: tuple[int, ...] = (), logprobs: tuple[TokenLogprob, ...] = (), alone: bool = False,
        prompt_logprobs: tuple[TokenLogprob, ...] = (),
    ) -> EngineOutput:  # fmt: skip
        """End a choice wherever it is and return its last Output.

        An error or an abort ends all choices of the request, unless this one is to end `alone`.
        """
        family, name = self.families[sequence.request_id], sequence.request_id
        timeline = self._remove(family, sequence, reason, error, now)
        if family.open and not alone and (reason is FinishReason.ERROR or reason is FinishReason.ABORT):
            for other in list(family.open.values()):
                self._remove(family, other, reason, error, now)
        usage = None
        if not family.open:
            usage = family.usage()
            del self.families[name]
            self.counters.record_finish(reason)
        else:
            self.enqueue_deferred(family, now)
        return EngineOutput(
            name, tokens, logprobs, reason, error, usage, timeline, sequence.choice_index, prompt_logprobs
        )

    def _remove(
        self, family: SequenceGroup, sequence: Sequence, reason: FinishReason, error: ChairliftError | None, now: float
    ) -> Timeline:
        """Take one choice out of every list."""
        if sequence.status is SequenceStatus.RUNNING:
            self._free(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self._dequeue(sequence, now)
        else:
            family.deferred.remove(sequence)
        del self.sequences[sequence.seq_id]
        self.num_structured -= sequence.grammar is not None
        family.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason, sequence.error = reason, error
        sequence.timeline_recorder.record("finished", now, reason if error is None else error.code)
        return sequence.timeline_recorder.build()

    # -- proof -----------------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Prove that everybody is in one list, has a seat or none, and counters in order; returns what is wrong."""
        return [*self._check_lists(), *self._check_counters(self.sequences.values())]

    def _check_lists(self) -> list[str]:
        found = []
        slots = sorted([*self._free_slots, *(sequence.slot for sequence in self.running.values())])
        if slots != list(range(self._seats)):
            found.append(f"slots are not each free or taken once: {slots}")
        waiting = {sequence.seq_id for sequence in self.line}
        riding = {sequence.seq_id for sequence in self.running.values()}
        held = {sequence.seq_id for family in self.families.values() for sequence in family.deferred}
        everywhere = len(waiting) + len(riding) + len(held)
        if everywhere != len(waiting | riding | held) or waiting | riding | held != set(self.sequences):
            found.append(f"{len(waiting)} wait, {len(riding)} ride, {len(held)} are held of {len(self.sequences)} open")
        if len(waiting) != len(self.line):
            found.append(f"the line counts {len(self.line)} and holds {len(waiting)}")
        known = {sequence.seq_id for family in self.families.values() for sequence in family.open.values()}
        if known != set(self.sequences):
            found.append(f"{len(known)} choices are open in {len(self.families)} requests of {len(self.sequences)}")
        return found

    def _check_counters(self, sequences: Iterable[Sequence]) -> list[str]:
        found = []
        for sequence in sequences:
            name, riding = sequence.seq_id, sequence.status is SequenceStatus.RUNNING
            if (
                not 0
                <= sequence.num_computed_tokens
                <= sequence.num_scheduled_tokens
                <= sequence.num_tokens_with_pending
            ):
                counters = f"{sequence.num_computed_tokens} <= {sequence.num_scheduled_tokens}"
                counters += f" <= {sequence.num_tokens_with_pending}"
                found.append(f"{name}: counters out of order, not 0 <= {counters}")
            if riding != (sequence.table is not None) or riding != (sequence.slot >= 0):
                found.append(f"{name}: {sequence.status.name} with table {sequence.table} and slot {sequence.slot}")
            if sequence.table is not None and sequence.num_scheduled_tokens > sequence.table.capacity:
                found.append(f"{name}: {sequence.num_scheduled_tokens} tokens scheduled into {sequence.table.capacity}")
            if not riding and sequence.num_scheduled_tokens:
                found.append(f"{name}: waits with {sequence.num_scheduled_tokens} tokens scheduled")
        return found
