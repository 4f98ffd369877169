"""Who has to leave so that the head of the line can board: the least urgent first, and nobody in vain."""

from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.free_block_list import NULL_BLOCK, BlockId
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, PrefixHit
from chairlift.engine.scheduler.deadlines import Deadlines
from chairlift.engine.scheduler.running_scheduler import RunningScheduler
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.sequence import Sequence

RETRY_STEPS = 32
"""Steps after which a search that failed is made again although the same ones ride."""


class PreemptionTrial:
    """What would be there for the head if some riders left; changes nothing.

    A block comes free when all who hold it leave. If the head shares it, it stays the head's: it is freed and wanted.
    """

    def __init__(self, cache: KVCacheManager, lookahead: int, hit: PrefixHit) -> None:
        self._cache, self._lookahead = cache, lookahead
        self._shared = {block for blocks in hit.blocks for block in blocks if block != NULL_BLOCK}
        self._let_go: dict[BlockId, int] = {}
        self.sequences: dict[Sequence, int] = {}
        self.freed = 0
        self.revived = 0

    @property
    def num_freed_blocks(self) -> int:
        """Blocks that come free, or are promised no more."""
        return self.freed + sum(self.sequences.values())

    def add(self, sequence: Sequence) -> None:
        """Let it leave too."""
        table, let_go, references = sequence.table, self._let_go, self._cache.pool.references
        assert table is not None
        promised = sequence.num_unscheduled_tokens > 1
        self.sequences[sequence] = (
            self._cache.blocks_still_needed(table, len(sequence.token_ids), self._lookahead) if promised else 0
        )
        for block in table.tail_first():
            count = let_go[block] = let_go.get(block, 0) + 1
            if count == references(block):
                self.freed += 1
                self.revived += block in self._shared

    def undo(self, sequence: Sequence) -> None:
        """Let it stay after all."""
        table, let_go, references = sequence.table, self._let_go, self._cache.pool.references
        assert table is not None
        del self.sequences[sequence]
        for block in table.tail_first():
            if let_go[block] == references(block):
                self.freed -= 1
                self.revived -= block in self._shared
            let_go[block] -= 1


class PriorityPreemption:
    """Sends riders away for the head of the line. Keeps no state but which search failed last, and among whom."""

    def __init__(
        self, config: SchedulerConfig, cache: KVCacheManager, roster: SequenceTable, riding: RunningScheduler,
        deadlines: Deadlines,
        lookahead: int,
    ) -> None:  # fmt: skip
        self._config = config
        self._cache = cache
        self._roster = roster
        self._riding = riding
        self._deadlines = deadlines
        self._lookahead = lookahead
        self._failed_state: tuple[int, int, int] | None = None
        self._candidates: list[Sequence] = []
        self._retry_at = 0

    def preempt_for_head(self, draft: StepBuilder, reading: list[Sequence], now: float) -> list[Sequence]:
        """Send those away whom the head outranks, if it can board in this step then and cannot before; returns them.

        To be asked when the line may board, after those on board got their tokens. Nobody leaves for a head that waits
        for a prefix or cannot make its deadline (that one ends here), or for tokens of the step alone.
        """
        roster = self._roster
        found = self._head(now) if roster.line.can_preempt and draft.prefill_left > 0 else None
        if found is None:
            return []
        head, hit = found
        victims = self._find_victims(head, hit, self._riding.reserved_blocks(reading))
        tokens_left = draft.tokens_left
        if tokens_left < 1:
            tokens_left += sum(draft.chunks.get(each, each in draft.decodes) for each in victims)
        if tokens_left < 1:
            return []
        for each in victims:
            draft.remove(each)
            draft.preempted = True
            roster.preempt(each, now)
        return victims

    def _head(self, now: float) -> tuple[Sequence, PrefixHit] | None:
        """The head of the line and what of it is cached, when somebody might have to leave for it."""
        roster, cache = self._roster, self._cache
        while (head := next(iter(roster.line), None)) is not None:
            if head.num_pending_samples or (self._has_failed(head) and roster.counters.steps < self._retry_at):
                return None
            patient = head.num_prefix_waits <= self._config.prefix_wait_steps
            if patient and head.awaited_block_hash is not None and cache.is_pending(head.awaited_block_hash):
                return None
            hit = roster.match(head)
            if patient and hit.pending is not None:
                return None
            error = self._deadlines.unreachable_error(head, hit.num_tokens, now)
            if error is None:
                return head, hit
            roster.fail(head, error, now)
        return None

    def _has_failed(self, head: Sequence) -> bool:
        """Whether the last search that failed was for this head and among the same riders."""
        return self._failed_state == self._state(head)

    def _state(self, head: Sequence) -> tuple[int, int, int]:
        """The same as long as nobody leaves and nobody boards."""
        counters = self._roster.counters
        gone = counters.preemptions + sum(counters.finished_by_reason.values())
        return head.arrival_index, gone, len(self._roster.running)

    def _find_victims(self, head: Sequence, hit: PrefixHit, promised: int) -> list[Sequence]:
        """Return the fewest that have to leave, none when the head fits anyway or never; remembers the latter."""
        roster, line, cache = self._roster, self._roster.line, self._cache
        leaving = PreemptionTrial(cache, self._lookahead, hit)

        def fits(riders: int, room: int, revived: int) -> bool:
            wanted = cache.blocks_needed(hit, len(head.token_ids), self._lookahead, revived)
            return riders < self._config.max_running_sequences and room - self._riding.growth_reserve_blocks(
                riders
            ) >= max(1, wanted)

        def fits_then() -> bool:
            riders = len(roster.running) - len(leaving.sequences)
            return fits(riders, cache.pool.available - promised + leaving.num_freed_blocks, leaving.revived)

        if fits_then():
            return []
        if hit.tail:  # it may be with those who leave
            hit = cache.match(head.block_hashes, len(head.token_ids))
            leaving = PreemptionTrial(cache, self._lookahead, hit)
        if not self._has_failed(head):
            self._candidates = [
                each for each in roster.running.values()
                if each.num_preemptions < self._config.protect_after_preemptions and line.outranks(head, each)
            ]  # fmt: skip
        self._failed_state, self._retry_at = self._state(head), roster.counters.steps + RETRY_STEPS
        # No block is held by others, nothing is promised: if that is not enough, looking closely is in vain.
        most = sum([each.table.num_held for each in self._candidates if each.table is not None])
        if not fits(len(roster.running) - len(self._candidates), cache.pool.available + most, 0):
            return []
        lost = self._riding.recompute_cost
        for each in sorted(
            self._candidates, key=lambda one: (-line.preemption_rank(one), lost(one), -one.arrival_index)
        ):
            leaving.add(each)
            if fits_then():
                break
        else:
            return []
        self._failed_state = None
        for each in [*leaving.sequences][-2::-1]:
            leaving.undo(each)
            if not fits_then():
                leaving.add(each)
        return list(leaving.sequences)
