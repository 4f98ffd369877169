"""DraftPlanner: gives drafts to decoding sequences of a step that is filled, where they take nothing from others.

Drafts use what a step without prompt tokens has left: tokens of its budget, and blocks beyond those that the running
sequences need next. They preempt nothing. A draft ends before a token that the sequence's grammar does not allow.
"""

from collections.abc import Sequence as Items

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.drafters.base import Drafter, DraftsTogether, LearnsFromOutputs
from chairlift.engine.drafters.draft_record import DraftRecord
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.sequence import Sequence
from chairlift.engine.structured.grammar_matcher import GrammarMatcher


class DraftPlanner:
    """Asks drafters for the drafts of each sequence: the first one that proposes tokens is used."""

    def __init__(
        self, config: SchedulerConfig, cache: KVCacheManager, table: SequenceTable, drafters: Items[Drafter], *,
        vocab_size: int, max_drafts: int,
    ) -> None:  # fmt: skip
        self._cache, self._table, self._drafters = cache, table, drafters
        self._learning = [drafter for drafter in drafters if isinstance(drafter, LearnsFromOutputs)]
        self._together = [drafter for drafter in drafters if isinstance(drafter, DraftsTogether)]
        self._vocab_size = vocab_size
        # A row with drafts is computed like a chunk of a prompt, whose length is bounded.
        self._max_drafts = min(max_drafts, config.max_prefill_chunk - 1)

    def awaits_samples(self, sequence: Sequence) -> bool:
        """Return whether a sequence with samples in flight should wait for them, because it will have drafts then."""
        return sequence.may_have_drafts and any(
            each.will_propose(sequence) if isinstance(each, DraftsTogether) else len(each.propose(sequence, 2)) > 1
            for each in self._drafters
        )

    def record(self, sequence: Sequence, num_drafts: int, num_confirmed: int) -> None:
        """Take how many drafts of a sequence's step became part of its output."""
        if sequence.draft_record is None:
            sequence.draft_record = DraftRecord()
        sequence.draft_record.add(sequence.draft_source, num_drafts, num_confirmed)

    def learn(self, sequence: Sequence) -> None:
        """Take the tokens of a sequence that has finished without an error."""
        for drafter in self._learning:
            drafter.learn(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Let drafters release what they keep of a sequence that has ended."""
        for drafter in self._together:
            drafter.forget(sequence)

    def schedule(self, builder: StepBuilder) -> None:
        """Give drafts to the decoding sequences of a step, in order."""
        if builder.chunks or builder.preempted:
            return
        sequences = [each for each in builder.decodes if each.may_have_drafts and _is_known(each)]
        if self._together:
            requests = [(each, limit) for each in sequences if (limit := self._limit(builder, each)) > 0]
            for drafter in self._together if requests else ():
                drafter.prepare(requests)
        for sequence in sequences:
            if builder.tokens_left < 1:
                return
            self._add(builder, sequence)

    def _limit(self, builder: StepBuilder, sequence: Sequence) -> int:
        """Return the most drafts that a sequence may have in what the step has left."""
        # One more token is sampled behind the last draft.
        limit = min(self._max_drafts, builder.tokens_left, sequence.max_length - len(sequence.token_ids) - 1)
        if self._cache.config.has_state:
            limit = 0 if builder.checkpoints is None else min(limit, builder.checkpoints.max_drafts)
        return limit

    def _add(self, builder: StepBuilder, sequence: Sequence) -> None:
        if (limit := self._limit(builder, sequence)) < 1:
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


def _is_known(sequence: Sequence) -> bool:
    """Return whether a sequence of the step has no sample in flight, and only its last token to compute."""
    return sequence.num_scheduled_tokens == len(sequence.token_ids) - 1 and not sequence.num_pending_samples
