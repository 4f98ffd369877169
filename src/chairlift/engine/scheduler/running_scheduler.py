"""What those on board get of a step, and who has to leave when blocks run out."""

from dataclasses import dataclass, field
from operator import attrgetter

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCache
from chairlift.engine.scheduler.sequence_table import Roster
from chairlift.engine.scheduler.step_builder import Draft
from chairlift.engine.sequence import Sequence, Status

GROWTH_TOKENS = 16
"""Tokens by which everybody on board should be able to grow before the next one boards."""

READERS = 4
"""Prompts that are read side by side, if there are so many, in a step with fewer prompt tokens than configured."""


_num_wanted = attrgetter("num_wanted")


@dataclass(slots=True)
class OnBoard:
    """Those on board who want something, in the order in which they boarded.

    Attributes:
        ready: want one token and have a slot for it.
        growing: want one token and need another block first.
        reading: want more of their prompt.
    """

    ready: list[Sequence] = field(default_factory=list)
    growing: list[Sequence] = field(default_factory=list)
    reading: list[Sequence] = field(default_factory=list)

    @property
    def num_generating(self) -> int:
        """How many want one token."""
        return len(self.ready) + len(self.growing)


class Riding:
    """Hands tokens to those on board. Keeps no state of its own."""

    def __init__(self, config: SchedulerConfig, cache: KVCache, roster: Roster, lookahead: int) -> None:
        self._protect_after = config.protect_after
        self._fair_chunk, self._max_chunk = config.fair_chunk, config.max_chunk
        self._final_chunk = config.final_chunk
        self._prefill_budget = config.prefill_budget
        self._lookahead = lookahead
        self._cache = cache
        self._roster = roster

    def sort(self, sequences: list[Sequence]) -> OnBoard:
        """See who wants what."""
        found = OnBoard()
        ready, growing, reading = found.ready, found.growing, found.reading
        for sequence in sequences:
            # num_wanted, spelled out: this is done for everybody in every step.
            known = len(sequence.token_ids) + sequence.num_pending
            start = sequence.num_scheduled
            if known >= sequence.longest or known == start or (sequence.num_pending and sequence.grammar is not None):
                continue
            if known - start > 1:
                reading.append(sequence)
            else:
                table = sequence.table
                assert table is not None
                (ready if start < table.capacity else growing).append(sequence)
        return found

    def generate(self, draft: Draft, on_board: OnBoard, now: float) -> None:
        """Give one token to each who wants just that, as far as the step goes; some may have to leave for others."""
        ready = on_board.ready
        if draft.preempted:
            ready = [sequence for sequence in ready if sequence.status is Status.RUNNING]
        draft.give_decodes(ready[: draft.tokens_left])
        for sequence in on_board.growing:
            if draft.tokens_left < 1:
                return
            if sequence.status is Status.RUNNING and self._make_room(draft, sequence, 1, now):
                draft.give_decodes([sequence])

    def fair_chunk(self, draft: Draft) -> int:
        """Prompt tokens of one request while others want some, in a step that has these left for prompts.

        It is the configured part of them, and no less than a READERS-th: with little to share out several read all the
        same, and a short prompt does not stand behind a long one.
        """
        granted = min(draft.prefill_left, draft.tokens_left)
        share = max(1, granted // READERS, self._fair_chunk * granted // self._prefill_budget)
        return min(self._fair_chunk, share)

    def read(
        self, draft: Draft, reading: list[Sequence], fair_chunk: int, now: float, *, in_turn: bool = False
    ) -> None:  # fmt: skip
        """Give a fair chunk, or a final one, to each who reads its prompt.

        In turn, only who boarded first gets that, so that nobody stands still for ever; all else goes to who is nearest
        to the end of its prompt, and then to the next.
        """
        order, nearest = reading, None
        if in_turn:
            nearest = min(reading, key=_num_wanted)
            order = [reading[0], *sorted(reading[1:], key=_num_wanted)]
        for sequence in order:
            count = self.fairly(draft, sequence.num_wanted, fair_chunk, sequence.num_scheduled)
            if sequence.status is not Status.RUNNING or count < 1:
                continue
            if self._make_room(draft, sequence, count, now):
                draft.give_prefill(sequence, count)
                if in_turn and (sequence is nearest or sequence is not reading[0]):
                    self._add(draft, sequence, count)

    def top_up(self, draft: Draft) -> None:
        """Give the rest of the step to long prompts, as far as the blocks go without sending anybody away."""
        for sequence, count in list(draft.chunks.items()):
            if draft.tokens_left < 1 or draft.prefill_left < 1:
                return
            self._add(draft, sequence, count)

    def _add(self, draft: Draft, sequence: Sequence, count: int) -> None:
        """Give more to one that has `count` prompt tokens, as far as the blocks go."""
        seen = sequence.num_scheduled + count
        more = self.chunk(draft, sequence.num_wanted - count, self._max_chunk - count, seen)
        if more < 1:
            return
        assert sequence.table is not None
        try:
            new = self._cache.reserve(sequence.table, seen + more)
        except OutOfBlocks:
            return
        draft.new_blocks.setdefault(sequence, []).extend(new)
        draft.give_prefill(sequence, more)

    def fairly(self, draft: Draft, wanted: int, fair_chunk: int, tokens_seen: int) -> int:
        """Prompt tokens that somebody can get now while others want some: a fair chunk, or a final one.

        Who has read a prompt leaves the next steps to others: prompts that end one after the other do so earlier, in
        the mean, than side by side.
        """
        final = fair_chunk * self._final_chunk // self._fair_chunk
        return self.chunk(draft, wanted, wanted if wanted <= final else fair_chunk, tokens_seen)

    @staticmethod
    def chunk(draft: Draft, wanted: int, bound: int, tokens_seen: int) -> int:
        """Prompt tokens that somebody can get now who has so many before them."""
        count = min(wanted, bound, draft.tokens_left, draft.prefill_left)
        return count if draft.meter is None else min(count, draft.meter.fits(tokens_seen))

    def promised(self, reading: list[Sequence]) -> int:
        """Blocks that those who read their prompt still need for the input they were let in with."""
        total = 0
        for sequence in reading:
            if sequence.table is not None:
                total += self._cache.still_needed(sequence.table, len(sequence.token_ids), self._lookahead)
        return total

    def growth_reserve(self, riders: int) -> int:
        """Blocks that so many riders should find free when another one boards."""
        return -(-riders * len(self._cache.layouts) * GROWTH_TOKENS // self._cache.config.block_size)

    def _make_room(self, draft: Draft, sequence: Sequence, count: int, now: float) -> bool:
        """Reserve blocks, sending others back to the line while there are too few; False when it cannot ride now."""
        roster = self._roster
        while True:
            assert sequence.table is not None
            try:
                new = self._cache.reserve(sequence.table, sequence.num_scheduled + count)
            except OutOfBlocks as error:
                if len(roster.running) == 1:
                    if not draft.in_flight:
                        roster.give_up(sequence, error, now)
                    return False
                victim = self._victim()
                draft.take_back(victim)
                draft.preempted = True
                roster.preempt(victim, now)
                if victim is sequence:
                    return False
            else:
                if new:
                    draft.new_blocks.setdefault(sequence, []).extend(new)
                return True

    def _victim(self) -> Sequence:
        """Whoever loses the least computed work; those preempted often are spared, the oldest of them to the end."""

        def loss(sequence: Sequence) -> tuple[int, int, int, int]:
            if sequence.num_preemptions >= self._protect_after:
                return 1, 0, 0, -sequence.arrival
            return 0, -self._roster.line.expendable(sequence), self.lost_tokens(sequence), -sequence.arrival

        return min(self._roster.running.values(), key=loss)

    def lost_tokens(self, sequence: Sequence) -> int:
        """Computed tokens that a riding sequence would lose by leaving."""
        assert sequence.table is not None
        return self._cache.sole_tokens(sequence.table, sequence.num_computed)
