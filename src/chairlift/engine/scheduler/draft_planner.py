"""DraftPlanner: gives drafts to decoding sequences of a step that is filled, where they take nothing from others.

Drafts use what a step without prompt tokens has left: tokens of its budget, samples that the runner has memory for, and
blocks beyond those that the running sequences need next. They preempt nothing. A draft ends before a token that the
sequence's grammar does not allow.
"""

from collections.abc import Sequence as Items

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.drafters.base import Drafter, LearnsFromOutputs
from chairlift.engine.drafters.draft_record import DraftRecord
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.sequence import Sequence
from chairlift.engine.step_plan import MIN_STEP_SAMPLES
from chairlift.engine.structured.grammar_matcher import GrammarMatcher


class DraftPlanner:
    """Asks drafters for the drafts of each sequence: the first one that proposes tokens is used."""

    def __init__(
        self, config: SchedulerConfig, cache: KVCacheManager, table: SequenceTable, drafters: Items[Drafter], *,
        vocab_size: int, max_drafts: int,
    ) -> None:  # fmt: skip
        self._cache, self._table, self._drafters = cache, table, drafters
        self._learning = [drafter for drafter in drafters if isinstance(drafter, LearnsFromOutputs)]
        self._vocab_size = vocab_size
        # A row with drafts is computed like a chunk of a prompt, whose length is bounded.
        self._max_drafts = min(max_drafts, config.max_prefill_chunk - 1)
        # Each sample may need a row of logits, for which the runner has sized its memory.
        self._max_samples = max(config.max_running_requests, MIN_STEP_SAMPLES)

    def awaits_samples(self, sequence: Sequence) -> bool:
        """Return whether a sequence with samples in flight should wait for them, because it will have drafts then."""
        return sequence.may_have_drafts and any(len(each.propose(sequence, 2)) > 1 for each in self._drafters)

    def record(self, sequence: Sequence, num_drafts: int, num_confirmed: int) -> None:
        """Take how many drafts of a sequence's step became part of its output."""
        if sequence.draft_record is None:
            sequence.draft_record = DraftRecord()
        sequence.draft_record.add(sequence.draft_source, num_drafts, num_confirmed)

    def learn(self, sequence: Sequence) -> None:
        """Take the tokens of a sequence that has finished without an error."""
        for drafter in self._learning:
            drafter.learn(sequence)

    def schedule(self, builder: StepBuilder) -> None:
        """Give drafts to the decoding sequences of a step, in order."""
        if builder.chunks or builder.preempted:
            return
        for sequence in builder.decodes:
            if builder.tokens_left < 1 or self._samples_left(builder) < 1:
                return
            is_known = sequence.num_scheduled_tokens == len(sequence.token_ids) - 1 and not sequence.num_pending_samples
            if is_known and sequence.may_have_drafts:
                self._add(builder, sequence)

    def _add(self, builder: StepBuilder, sequence: Sequence) -> None:
        # One more token is sampled behind the last draft.
        length = len(sequence.token_ids)
        limit = min(
            self._max_drafts, builder.tokens_left, self._samples_left(builder), sequence.max_length - length - 1
        )
        if self._cache.config.has_state:
            limit = 0 if builder.checkpoints is None else min(limit, builder.checkpoints.max_drafts)
        if limit < 1:
            return
        for drafter in self._drafters:
            drafts, grammars = self._allowed(sequence, tuple(drafter.propose(sequence, limit))[:limit])
            if drafts:
                break
        else:
            return
        sequence.draft_source = drafter.name
        if count := self._reserve(builder, sequence, len(drafts)):
            if builder.checkpoints is not None:
                builder.checkpoints.allocate_drafts(sequence, count)
            builder.add_drafts(sequence, drafts[:count], grammars[:count])

    def _samples_left(self, builder: StepBuilder) -> int:
        """Return how many more samples a step without chunks may have."""
        return self._max_samples - len(builder.decodes) - sum(len(each.drafts) for each in builder.drafting)

    def _allowed(
        self, sequence: Sequence, drafts: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[GrammarMatcher, ...]]:
        """Return the drafts before the first that cannot follow, and the grammar after each of them."""
        for place, draft in enumerate(drafts):
            # Behind a stop token nothing is sampled.
            if not 0 <= draft < self._vocab_size or draft in sequence.stop_token_ids:
                drafts = drafts[:place]
                break
        if sequence.grammar is None:
            return drafts, ()
        grammars = sequence.grammar.after_each(drafts)
        return drafts[: len(grammars)], grammars

    def _reserve(self, builder: StepBuilder, sequence: Sequence, count: int) -> int:
        """Reserve blocks for up to `count` drafts; returns for how many there is room."""
        table, cache = sequence.table, self._cache
        assert table is not None
        num_tokens = sequence.num_scheduled_tokens + 1 + count
        num_new = len(cache.layouts) * -(-max(0, num_tokens - table.capacity) // cache.config.block_size)
        # Each running sequence may need a block in every layer group for its next token.
        spare = cache.pool.available - len(cache.layouts) * len(self._table.running)
        if num_new and num_new > spare:
            return min(count, table.capacity - sequence.num_scheduled_tokens - 1)
        try:
            new = cache.reserve(table, num_tokens)
        except OutOfBlocks:
            return min(count, table.capacity - sequence.num_scheduled_tokens - 1)
        if new:
            builder.new_blocks.setdefault(sequence, []).extend(new)
        return count
