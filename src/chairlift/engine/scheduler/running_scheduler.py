"""RunningScheduler: gives tokens of a step to running sequences; chooses victims when blocks run out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.sequence import Sequence, SequenceStatus

GROWTH_RESERVE_TOKENS = 16
"""Tokens by which every running sequence should be able to grow before another one starts."""

MAX_PARALLEL_PREFILLS = 4
"""Prompts prefilled in parallel in a step with fewer prompt tokens than configured."""


_num_unscheduled_tokens = attrgetter("num_unscheduled_tokens")


@dataclass(slots=True)
class RunningSets:
    """Running sequences that need tokens, in the order in which they started.

    Attributes:
        decode_ready: need one token and have room for it in their blocks.
        decode_needs_block: need one token and another block first.
        prefilling: need more prompt tokens.
    """

    decode_ready: list[Sequence] = field(default_factory=list)
    decode_needs_block: list[Sequence] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)

    @property
    def num_decoding(self) -> int:
        """Number of sequences that need one token."""
        return len(self.decode_ready) + len(self.decode_needs_block)


class RunningScheduler:
    """Gives tokens to running sequences. Keeps no state of its own."""

    def __init__(
        self, config: SchedulerConfig, cache: KVCacheManager, sequence_table: SequenceTable, lookahead: int
    ) -> None:
        self._protect_after = config.protect_after_preemptions
        self._fair_chunk, self._max_chunk = config.fair_prefill_chunk, config.max_prefill_chunk
        self._final_chunk = config.final_prefill_chunk
        self._prefill_budget = config.prefill_budget
        self._lookahead = lookahead
        self._cache = cache
        self._sequence_table = sequence_table

    def classify(
        self, sequences: list[Sequence], awaits_samples: Callable[[Sequence], bool] | None = None
    ) -> RunningSets:
        """Sort sequences by what they need; leave out those for which `awaits_samples` says so."""
        sets = RunningSets()
        ready, needs_block, prefilling = sets.decode_ready, sets.decode_needs_block, sets.prefilling
        for sequence in sequences:
            # num_unscheduled_tokens, inlined: this runs for every sequence in every step.
            known = len(sequence.token_ids) + sequence.num_pending_samples
            start = sequence.num_scheduled_tokens
            # No token can be scheduled while the samples in flight reach its length limit, or while its grammar, which
            # makes the mask of the next token, has not seen them, or how many of its drafts are right is not known.
            if (
                known >= sequence.max_length
                or known == start
                or (sequence.num_pending_samples and (sequence.grammar is not None or sequence.drafts))
            ):
                continue
            if awaits_samples is not None and sequence.num_pending_samples and awaits_samples(sequence):
                continue
            if known - start > 1:
                prefilling.append(sequence)
            else:
                table = sequence.table
                assert table is not None
                (ready if start < table.capacity else needs_block).append(sequence)
        return sets

    def schedule_decodes(self, builder: StepBuilder, running_sets: RunningSets, now: float) -> None:
        """Give one token to each decoding sequence within the budget; may preempt sequences for blocks."""
        ready = running_sets.decode_ready
        # Where prompts come first, one of them may have preempted a sequence of these sets.
        if builder.preempted:
            ready = [sequence for sequence in ready if sequence.status is SequenceStatus.RUNNING]
        builder.add_decodes(ready[: builder.tokens_left])
        # These come last, as they may preempt. A victim that has its token already loses it in builder.remove().
        for sequence in running_sets.decode_needs_block:
            if builder.tokens_left < 1:
                return
            if sequence.status is SequenceStatus.RUNNING and self._reserve_or_preempt(builder, sequence, 1, now):
                builder.add_decodes([sequence])

    def fair_chunk(self, builder: StepBuilder) -> int:
        """Return the prompt tokens that one of several prefilling sequences may get from this step.

        It is the configured share of them and at least 1 / MAX_PARALLEL_PREFILLS: even with a small budget several
        prompts advance, and a short prompt does not wait for a long one.
        """
        granted = min(builder.prefill_left, builder.tokens_left)
        share = max(1, granted // MAX_PARALLEL_PREFILLS, self._fair_chunk * granted // self._prefill_budget)
        return min(self._fair_chunk, share)

    def schedule_prefills(
        self, builder: StepBuilder, prefilling: list[Sequence], fair_chunk: int, now: float, *, sequential: bool = False
    ) -> None:  # fmt: skip
        """Give a fair or a final chunk to each prefilling sequence.

        With `sequential`, only the sequence that started first gets a fair chunk, so that no sequence starves. The rest
        goes to the sequence with the shortest remaining prompt, then to the next.
        """
        order, nearest = prefilling, None
        if sequential:
            nearest = min(prefilling, key=_num_unscheduled_tokens)
            order = [prefilling[0], *sorted(prefilling[1:], key=_num_unscheduled_tokens)]
        for sequence in order:
            count = self.fair_chunk_tokens(
                builder, sequence.num_unscheduled_tokens, fair_chunk, sequence.num_scheduled_tokens
            )
            # A sequence before it in this loop may have preempted it.
            if sequence.status is not SequenceStatus.RUNNING or count < 1:
                continue
            if self._reserve_or_preempt(builder, sequence, count, now):
                builder.add_prefill(sequence, count)
                # The rest of the step is for the shortest prompts, so the oldest needs to be the very shortest.
                if sequential and (sequence is nearest or sequence is not prefilling[0]):
                    self._add(builder, sequence, count)

    def schedule_leftover_prefill(self, builder: StepBuilder) -> None:
        """Give the rest of the step to long prompts, as far as free blocks allow without preemption."""
        for sequence, count in list(builder.chunks.items()):
            if builder.tokens_left < 1 or builder.prefill_left < 1:
                return
            self._add(builder, sequence, count)

    def _add(self, builder: StepBuilder, sequence: Sequence, count: int) -> None:
        """Give a sequence more than its `count` prompt tokens of this step, as far as blocks are free."""
        context_tokens = sequence.num_scheduled_tokens + count
        more = self.bounded_chunk(
            builder, sequence.num_unscheduled_tokens - count, self._max_chunk - count, context_tokens
        )
        if more < 1:
            return
        assert sequence.table is not None
        try:
            # More than a fair chunk is not worth a preemption.
            new = self._cache.reserve(sequence.table, context_tokens + more)
        except OutOfBlocks:
            return
        builder.new_blocks.setdefault(sequence, []).extend(new)
        builder.add_prefill(sequence, more)

    def fair_chunk_tokens(
        self, builder: StepBuilder, num_unscheduled: int, fair_chunk: int, context_tokens: int
    ) -> int:
        """Return the prompt tokens for a sequence while others need some: a fair or a final chunk.

        A completed prompt leaves the next steps to others: prompts prefilled one after the other complete earlier, on
        average, than in parallel.
        """
        final = fair_chunk * self._final_chunk // self._fair_chunk
        return self.bounded_chunk(
            builder, num_unscheduled, num_unscheduled if num_unscheduled <= final else fair_chunk, context_tokens
        )

    @staticmethod
    def bounded_chunk(builder: StepBuilder, num_unscheduled: int, bound: int, context_tokens: int) -> int:
        """Return the prompt tokens, at most `bound`, for a sequence with that context."""
        count = min(num_unscheduled, bound, builder.tokens_left, builder.prefill_left)
        return count if builder.meter is None else min(count, builder.meter.fits(context_tokens))

    def reserved_blocks(self, prefilling: list[Sequence]) -> int:
        """Return the blocks that prefilling sequences still need for their input."""
        total = 0
        for sequence in prefilling:
            if sequence.table is not None:
                total += self._cache.blocks_still_needed(sequence.table, len(sequence.token_ids), self._lookahead)
        return total

    def growth_reserve_blocks(self, num_running: int) -> int:
        """Return the blocks to keep free for num_running sequences when another one starts."""
        return -(-num_running * len(self._cache.layouts) * GROWTH_RESERVE_TOKENS // self._cache.config.block_size)

    def _reserve_or_preempt(self, builder: StepBuilder, sequence: Sequence, count: int, now: float) -> bool:
        """Reserve blocks, preempting sequences while too few are free; False when it cannot run now."""
        sequence_table = self._sequence_table
        while True:
            assert sequence.table is not None
            try:
                new = self._cache.reserve(sequence.table, sequence.num_scheduled_tokens + count)
            except OutOfBlocks as error:
                if len(sequence_table.running) == 1:
                    # The commit of a step in flight may free blocks behind a window: then it may still fit.
                    if not builder.num_in_flight:
                        sequence_table.fail(sequence, error, now)
                    return False
                victim = self._select_victim()
                builder.remove(victim)
                builder.preempted = True
                sequence_table.preempt(victim, now)
                if victim is sequence:
                    return False
            else:
                if new:
                    builder.new_blocks.setdefault(sequence, []).extend(new)
                return True

    def _select_victim(self) -> Sequence:
        """Return the sequence that loses the least computed work; often preempted ones come last."""

        def loss(sequence: Sequence) -> tuple[int, int, int, int]:
            # Whatever it would lose: the bound on waiting times (step_scheduler.py) rests on this.
            if sequence.num_preemptions >= self._protect_after:
                return 1, 0, 0, -sequence.arrival_index
            return (
                0,
                -self._sequence_table.waiting.preemption_rank(sequence),
                self.recompute_cost(sequence),
                -sequence.arrival_index,
            )

        return min(self._sequence_table.running.values(), key=loss)

    def recompute_cost(self, sequence: Sequence) -> int:
        """Return the computed tokens that a running sequence would lose by preemption."""
        assert sequence.table is not None
        return self._cache.num_unshared_tokens(sequence.table, sequence.num_computed_tokens)
