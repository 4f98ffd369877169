"""What those on board get of a step, and who has to leave when blocks run out."""

from dataclasses import dataclass, field
from operator import attrgetter

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.sequence import Sequence, SequenceStatus

GROWTH_RESERVE_TOKENS = 16
"""Tokens by which everybody on board should be able to grow before the next one boards."""

MAX_PARALLEL_PREFILLS = 4
"""Prompts that are read side by side, if there are so many, in a step with fewer prompt tokens than configured."""


_num_unscheduled_tokens = attrgetter("num_unscheduled_tokens")


@dataclass(slots=True)
class RunningSets:
    """Those on board who want something, in the order in which they boarded.

    Attributes:
        ready: want one token and have a slot for it.
        growing: want one token and need another block first.
        reading: want more of their prompt.
    """

    decode_ready: list[Sequence] = field(default_factory=list)
    decode_needs_block: list[Sequence] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)

    @property
    def num_decoding(self) -> int:
        """How many want one token."""
        return len(self.decode_ready) + len(self.decode_needs_block)


class RunningScheduler:
    """Hands tokens to those on board. Keeps no state of its own."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, roster: SequenceTable, lookahead: int) -> None:
        self._protect_after = config.protect_after_preemptions
        self._fair_chunk, self._max_chunk = config.fair_prefill_chunk, config.max_prefill_chunk
        self._final_chunk = config.final_prefill_chunk
        self._prefill_budget = config.prefill_budget
        self._lookahead = lookahead
        self._cache = cache
        self._roster = roster

    def classify(self, sequences: list[Sequence]) -> RunningSets:
        """See who wants what."""
        found = RunningSets()
        ready, growing, reading = found.decode_ready, found.decode_needs_block, found.prefilling
        for sequence in sequences:
            # num_wanted, spelled out: this is done for everybody in every step.
            known = len(sequence.token_ids) + sequence.num_pending_samples
            start = sequence.num_scheduled_tokens
            if (
                known >= sequence.max_length
                or known == start
                or (sequence.num_pending_samples and sequence.grammar is not None)
            ):
                continue
            if known - start > 1:
                reading.append(sequence)
            else:
                table = sequence.table
                assert table is not None
                (ready if start < table.capacity else growing).append(sequence)
        return found

    def schedule_decodes(self, draft: StepBuilder, on_board: RunningSets, now: float) -> None:
        """Give one token to each who wants just that, as far as the step goes; some may have to leave for others."""
        ready = on_board.decode_ready
        if draft.preempted:
            ready = [sequence for sequence in ready if sequence.status is SequenceStatus.RUNNING]
        draft.add_decodes(ready[: draft.tokens_left])
        for sequence in on_board.decode_needs_block:
            if draft.tokens_left < 1:
                return
            if sequence.status is SequenceStatus.RUNNING and self._reserve_or_preempt(draft, sequence, 1, now):
                draft.add_decodes([sequence])

    def fair_chunk(self, draft: StepBuilder) -> int:
        """Prompt tokens of one request while others want some, in a step that has these left for prompts.

        It is the configured part of them, and no less than a READERS-th: with little to share out several read all the
        same, and a short prompt does not stand behind a long one.
        """
        granted = min(draft.prefill_left, draft.tokens_left)
        share = max(1, granted // MAX_PARALLEL_PREFILLS, self._fair_chunk * granted // self._prefill_budget)
        return min(self._fair_chunk, share)

    def schedule_prefills(
        self, draft: StepBuilder, reading: list[Sequence], fair_chunk: int, now: float, *, in_turn: bool = False
    ) -> None:  # fmt: skip
        """Give a fair chunk, or a final one, to each who reads its prompt.

        In turn, only who boarded first gets that, so that nobody stands still for ever; all else goes to who is nearest
        to the end of its prompt, and then to the next.
        """
        order, nearest = reading, None
        if in_turn:
            nearest = min(reading, key=_num_unscheduled_tokens)
            order = [reading[0], *sorted(reading[1:], key=_num_unscheduled_tokens)]
        for sequence in order:
            count = self.fair_chunk_tokens(
                draft, sequence.num_unscheduled_tokens, fair_chunk, sequence.num_scheduled_tokens
            )
            if sequence.status is not SequenceStatus.RUNNING or count < 1:
                continue
            if self._reserve_or_preempt(draft, sequence, count, now):
                draft.add_prefill(sequence, count)
                if in_turn and (sequence is nearest or sequence is not reading[0]):
                    self._add(draft, sequence, count)

    def schedule_leftover_prefill(self, draft: StepBuilder) -> None:
        """Give the rest of the step to long prompts, as far as the blocks go without sending anybody away."""
        for sequence, count in list(draft.chunks.items()):
            if draft.tokens_left < 1 or draft.prefill_left < 1:
                return
            self._add(draft, sequence, count)

    def _add(self, draft: StepBuilder, sequence: Sequence, count: int) -> None:
        """Give more to one that has `count` prompt tokens, as far as the blocks go."""
        seen = sequence.num_scheduled_tokens + count
        more = self.bounded_chunk(draft, sequence.num_unscheduled_tokens - count, self._max_chunk - count, seen)
        if more < 1:
            return
        assert sequence.table is not None
        try:
            new = self._cache.reserve(sequence.table, seen + more)
        except OutOfBlocks:
            return
        draft.new_blocks.setdefault(sequence, []).extend(new)
        draft.add_prefill(sequence, more)

    def fair_chunk_tokens(self, draft: StepBuilder, wanted: int, fair_chunk: int, tokens_seen: int) -> int:
        """Prompt tokens that somebody can get now while others want some: a fair chunk, or a final one.

        Who has read a prompt leaves the next steps to others: prompts that end one after the other do so earlier, in
        the mean, than side by side.
        """
        final = fair_chunk * self._final_chunk // self._fair_chunk
        return self.bounded_chunk(draft, wanted, wanted if wanted <= final else fair_chunk, tokens_seen)

    @staticmethod
    def bounded_chunk(draft: StepBuilder, wanted: int, bound: int, tokens_seen: int) -> int:
        """Prompt tokens that somebody can get now who has so many before them."""
        count = min(wanted, bound, draft.tokens_left, draft.prefill_left)
        return count if draft.meter is None else min(count, draft.meter.fits(tokens_seen))

    def reserved_blocks(self, reading: list[Sequence]) -> int:
        """Blocks that those who read their prompt still need for the input they were let in with."""
        total = 0
        for sequence in reading:
            if sequence.table is not None:
                total += self._cache.blocks_still_needed(sequence.table, len(sequence.token_ids), self._lookahead)
        return total

    def growth_reserve_blocks(self, riders: int) -> int:
        """Blocks that so many riders should find free when another one boards."""
        return -(-riders * len(self._cache.layouts) * GROWTH_RESERVE_TOKENS // self._cache.config.block_size)

    def _reserve_or_preempt(self, draft: StepBuilder, sequence: Sequence, count: int, now: float) -> bool:
        """Reserve blocks, sending others back to the line while there are too few; False when it cannot ride now."""
        roster = self._roster
        while True:
            assert sequence.table is not None
            try:
                new = self._cache.reserve(sequence.table, sequence.num_scheduled_tokens + count)
            except OutOfBlocks as error:
                if len(roster.running) == 1:
                    if not draft.num_in_flight:
                        roster.fail(sequence, error, now)
                    return False
                victim = self._select_victim()
                draft.remove(victim)
                draft.preempted = True
                roster.preempt(victim, now)
                if victim is sequence:
                    return False
            else:
                if new:
                    draft.new_blocks.setdefault(sequence, []).extend(new)
                return True

    def _select_victim(self) -> Sequence:
        """Whoever loses the least computed work; those preempted often are spared, the oldest of them to the end."""

        def loss(sequence: Sequence) -> tuple[int, int, int, int]:
            if sequence.num_preemptions >= self._protect_after:
                return 1, 0, 0, -sequence.arrival_index
            return (
                0,
                -self._roster.line.preemption_rank(sequence),
                self.recompute_cost(sequence),
                -sequence.arrival_index,
            )

        return min(self._roster.running.values(), key=loss)

    def recompute_cost(self, sequence: Sequence) -> int:
        """Computed tokens that a riding sequence would lose by leaving."""
        assert sequence.table is not None
        return self._cache.num_unshared_tokens(sequence.table, sequence.num_computed_tokens)
