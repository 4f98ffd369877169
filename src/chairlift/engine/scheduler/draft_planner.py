"""DraftPlanner: gives drafts to decoding sequences of a step that is filled, where they take nothing from others.

Drafts use what a step without prompt tokens has left: tokens of its budget, samples that the runner has memory for, and
blocks beyond those that the running sequences need next. They preempt nothing. The drafts of a sequence end before a
token that its grammar does not allow. Their number follows from the measured times of steps and from how many drafts of
the sequence were confirmed so far.
"""

from collections.abc import Sequence as Items
from typing import NamedTuple

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.drafters.base import Drafter, DraftsTogether, GradesProposals, LearnsFromOutputs
from chairlift.engine.drafters.draft_record import DraftRecord, DraftSource, EngineRates
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.draft_budget import Proposal, choose_counts
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.scheduler.step_cost_model import StepCostModel, StepFeatures
from chairlift.engine.sequence import Sequence
from chairlift.engine.step_plan import MIN_STEP_SAMPLES
from chairlift.engine.structured.grammar_matcher import GrammarMatcher

MIN_ROW_SHARE = 1 / 64
"""Share of a step's time that one more row takes at least, whatever was measured."""

COST_MARGIN = 1.1
"""Factor of the expected cost of drafts: what does not clearly pay is not tried."""

FINISH_DECAY = 0.99
"""Factor of most_tokens_per_step for each request that finishes."""

MAX_INTERVAL = 8
"""Most tokens between two proposals for a sequence that has had no drafts lately."""

SEQUENCES_PER_INTERVAL = 4
"""Sequences of a step for each token between two such proposals: with few of them each is asked about in every step."""

MIN_AWAITED_RATE = 0.3
"""Rate below which a sequence does not wait for its sample, what would be computed meanwhile being worth more; and
below which a draft model computes drafts for it only at every MAX_INTERVAL-th token."""


class _Candidate(NamedTuple):
    """A sequence with proposed drafts."""

    sequence: Sequence
    source: DraftSource
    drafts: tuple[int, ...]
    rate: float


class DraftPlanner:
    """Asks drafters for the drafts of each sequence: the first one that proposes tokens is used.

    Attributes:
        most_tokens_per_step: tokens of a step that a sequence with drafts had lately on average, of the sequence with
            the most; falls slowly.
    """

    def __init__(
        self, config: SchedulerConfig, cache: KVCacheManager, table: SequenceTable, drafters: Items[Drafter], *,
        times: StepCostModel, vocab_size: int, max_drafts: int,
    ) -> None:  # fmt: skip
        self._cache, self._table, self._times, self._drafters = cache, table, times, drafters
        self._learning = [drafter for drafter in drafters if isinstance(drafter, LearnsFromOutputs)]
        self._rates = EngineRates()
        self._grading = {drafter.name: drafter for drafter in drafters if isinstance(drafter, GradesProposals)}
        self._together = [drafter for drafter in drafters if isinstance(drafter, DraftsTogether)]
        self._vocab_size = vocab_size
        # A row with drafts is computed like a chunk of a prompt, whose length is bounded.
        self._max_drafts = min(max_drafts, config.max_prefill_chunk - 1)
        self._target_ms = config.target_itl_ms
        self.most_tokens_per_step = 1.0
        # Each sample may need a row of logits, for which the runner has sized its memory.
        self._max_samples = max(config.max_running_requests, MIN_STEP_SAMPLES)

    def awaits_samples(self, sequence: Sequence) -> bool:
        """Return whether a sequence with samples in flight should wait for them, because it will have drafts then."""
        if not sequence.may_have_drafts:
            return False
        for drafter in self._drafters:
            if isinstance(drafter, DraftsTogether):
                has_drafts = drafter.will_propose(sequence)
            else:
                has_drafts = len(drafter.propose(sequence, 2)) > 1
            if has_drafts:
                return self._rate(sequence, self._source(drafter, sequence)) > MIN_AWAITED_RATE
        return False

    def record(self, sequence: Sequence, num_drafts: int, num_confirmed: int) -> None:
        """Take how many drafts of a sequence's step became part of its output."""
        if sequence.draft_record is None:
            sequence.draft_record = DraftRecord()
        sequence.draft_record.add(sequence.draft_source, num_drafts, num_confirmed)
        self._rates.add(sequence.draft_source, num_drafts, num_confirmed)

    def learn(self, sequence: Sequence) -> None:
        """Take the tokens of a sequence that has finished without an error."""
        if (record := sequence.draft_record) is not None:
            num_steps = sequence.num_output_tokens - record.num_confirmed
            self.most_tokens_per_step *= FINISH_DECAY
            if num_steps > 0:
                mean = sequence.num_output_tokens / num_steps
                self.most_tokens_per_step = max(1.0, mean, self.most_tokens_per_step)
        for drafter in self._learning:
            drafter.learn(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Let drafters release what they keep of a sequence that has ended."""
        for drafter in self._together:
            drafter.forget(sequence)

    def schedule(self, builder: StepBuilder) -> None:
        """Give drafts to the decoding sequences of a step, as many as shorten the time per token."""
        num_rows = len(builder.decodes)
        if builder.chunks or builder.preempted or not num_rows or builder.tokens_left < 1:
            return
        base_ms, row_ms = self._costs(builder.decodes)
        if not _pays(base_ms, row_ms, num_rows):
            return
        candidates = self._candidates(builder)
        proposals = [Proposal(len(each.drafts), each.rate) for each in candidates]
        most = min(builder.tokens_left, self._max_samples - num_rows)
        if self._target_ms is not None and row_ms:
            most = min(most, int(max(0.0, self._target_ms - base_ms) / row_ms))
        counts = choose_counts(proposals, num_rows, base_ms, row_ms, most)
        for candidate, count in zip(candidates, counts, strict=True):
            if count and self._add(builder, candidate, count):
                candidate.sequence.draft_interval = 1

    def pays(self, decodes: list[Sequence]) -> bool:
        """Return whether drafts that are always right would shorten the time per token of these sequences."""
        return _pays(*self._costs(decodes), len(decodes))

    def _costs(self, decodes: list[Sequence]) -> tuple[float, float]:
        """Return the expected milliseconds of a step without drafts, and those that a draft adds; (1, 0) if unknown."""
        num_read = sum([sequence.num_scheduled_tokens for sequence in decodes]) + len(decodes)
        base_ms = self._times.expected_ms(StepFeatures(len(decodes), 0, num_read, 0.0))
        row_ms = COST_MARGIN * max(self._times.row_ms, MIN_ROW_SHARE * base_ms)
        return (base_ms, row_ms) if base_ms > 0 else (1.0, 0.0)

    def _candidates(self, builder: StepBuilder) -> list[_Candidate]:
        """Return the sequences for which a drafter proposes tokens.

        In a step of many sequences one without drafts of late is asked about rarely: asking takes microseconds.
        """
        self._rates.pass_step()
        most_interval = min(MAX_INTERVAL, max(1, len(builder.decodes) // SEQUENCES_PER_INTERVAL))
        requests = [
            (each, limit)
            for each in builder.decodes
            if each.may_have_drafts
            and not len(each.token_ids) % min(each.draft_interval, most_interval)
            and _is_known(each)
            and (limit := self._limit(builder, each)) > 0
        ]
        for together in self._together if requests else ():
            together.prepare([
                (each, limit) for each, limit in requests
                if not len(each.token_ids) % MAX_INTERVAL
                or self._rate(each, DraftSource(together.name)) >= MIN_AWAITED_RATE
            ])  # fmt: skip
        candidates = []
        for sequence, limit in requests:
            if sequence.draft_record is not None:
                sequence.draft_record.pass_step()
            sequence.draft_interval = min(MAX_INTERVAL, 2 * sequence.draft_interval)
            for drafter in self._drafters:
                if drafts := self._before_end(sequence, drafter.propose(sequence, limit))[:limit]:
                    source = self._source(drafter, sequence)
                    candidates.append(_Candidate(sequence, source, drafts, self._rate(sequence, source)))
                    break
        return candidates

    def _limit(self, builder: StepBuilder, sequence: Sequence) -> int:
        """Return the most drafts that a sequence may have in what the step has left."""
        # One more token is sampled behind the last draft.
        left = min(builder.tokens_left, self._max_samples - len(builder.decodes))
        limit = min(self._max_drafts, left, sequence.max_length - len(sequence.token_ids) - 1)
        return self._within_checkpoints(builder, limit)

    def _within_checkpoints(self, builder: StepBuilder, count: int) -> int:
        """Return for how many of the drafts of a sequence there is room to save the state behind each."""
        if not self._cache.config.has_state:
            return count
        return 0 if builder.checkpoints is None else min(count, builder.checkpoints.max_drafts)

    def _source(self, drafter: Drafter, sequence: Sequence) -> DraftSource:
        """Return the source of the tokens that a drafter has just proposed for a sequence."""
        grading = self._grading.get(drafter.name)
        return DraftSource(drafter.name, 0 if grading is None else grading.grade(sequence))

    def _rate(self, sequence: Sequence, source: DraftSource) -> float:
        return self._rates.rate(source, sequence.draft_record)

    def _add(self, builder: StepBuilder, candidate: _Candidate, count: int) -> bool:
        """Give a sequence up to `count` of its drafts, as far as there is room; returns whether it has some."""
        sequence, drafts = candidate.sequence, candidate.drafts[: self._within_checkpoints(builder, count)]
        grammars: tuple[GrammarMatcher, ...] = ()
        if sequence.grammar is not None:
            grammars = sequence.grammar.after_each(drafts)
            drafts = drafts[: len(grammars)]
        if not drafts or not (count := self._reserve(builder, sequence, len(drafts))):
            return False
        if builder.checkpoints is not None:
            builder.checkpoints.allocate_drafts(sequence, count)
        sequence.draft_source = candidate.source
        builder.add_drafts(sequence, drafts[:count], grammars[:count])
        return True

    def _before_end(self, sequence: Sequence, drafts: Items[int]) -> tuple[int, ...]:
        """Return the drafts before the first that is a stop token, behind which nothing is sampled, or no token."""
        for place, draft in enumerate(drafts):
            if not 0 <= draft < self._vocab_size or draft in sequence.stop_token_ids:
                return tuple(drafts[:place])
        return tuple(drafts)

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


def _pays(base_ms: float, row_ms: float, num_rows: int) -> bool:
    """Return whether a draft that is always right would shorten the time per token of a step."""
    return base_ms > row_ms * num_rows


def _is_known(sequence: Sequence) -> bool:
    """Return whether a sequence of the step has no sample in flight, and only its last token to compute."""
    return sequence.num_scheduled_tokens == len(sequence.token_ids) - 1 and not sequence.num_pending_samples
