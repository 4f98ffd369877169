"""StepBuilder: collects the tokens and blocks of a step while the scheduler fills it.

Where layers keep a state, the runner's slot of a running sequence has the state of exactly its num_scheduled_tokens
leading tokens, once all launched steps are done. For the other sequences, those that start and those whose step was
rolled back, `is_in_runner` is False: their next row begins at position 0 or its plan loads a checkpoint.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from chairlift.engine.kv.kv_cache_manager import NewBlock
from chairlift.engine.scheduler.in_flight_step import InFlightStep
from chairlift.engine.scheduler.state_checkpoint_planner import NO_STATES, StateCheckpointPlanner
from chairlift.engine.sequence import Sequence
from chairlift.engine.step_plan import LAST_SAMPLED, Int32, StepPlan
from chairlift.engine.structured.grammar_matcher import GrammarMatcher


class PrefillMeter(Protocol):
    """Bounds the prompt tokens of one step by their cost, which depends on their context."""

    def fits(self, context_tokens: int) -> int:
        """Return how many more prompt tokens fit after that context."""
        ...

    def take(self, count: int, context_tokens: int) -> None:
        """Charge `count` prompt tokens."""
        ...


@dataclass(slots=True)
class StepBuilder:
    """Collects the tokens and blocks of the step being filled.

    Attributes:
        tokens_left: remaining tokens of the step.
        prefill_left: remaining prompt tokens of the step.
        num_in_flight: launched steps without a result.
        has_grammars: whether any open sequence has a grammar.
        meter: a further bound on prompt tokens, or None.
        checkpoints: plans which states the step loads and saves; None where none are shared.
        decodes: sequences that get one known or sampled token, in order.
        drafting: those of them that have drafts, too.
        chunks: prompt tokens of each other sequence, in order.
        new_blocks: blocks that a sequence got in this step.
        copies: (from, to) of blocks that a sequence starts with a copy of.
        preempted: whether a sequence was preempted for this step.
    """

    tokens_left: int
    prefill_left: int
    num_in_flight: int = 0
    has_grammars: bool = False
    meter: PrefillMeter | None = None
    checkpoints: StateCheckpointPlanner | None = None
    decodes: list[Sequence] = field(default_factory=list)
    drafting: dict[Sequence, None] = field(default_factory=dict)
    chunks: dict[Sequence, int] = field(default_factory=dict)
    new_blocks: dict[Sequence, list[NewBlock]] = field(default_factory=dict)
    copies: dict[Sequence, list[tuple[int, int]]] = field(default_factory=dict)
    preempted: bool = False

    @property
    def num_rows(self) -> int:
        """Sequences in the step so far."""
        return len(self.decodes) + len(self.chunks)

    def add_prefill(self, sequence: Sequence, count: int) -> None:
        """Give a sequence prompt tokens, on top of those it has."""
        before = self.chunks.get(sequence, 0)
        if self.meter is not None:
            self.meter.take(count, sequence.num_scheduled_tokens + before)
        self.chunks[sequence] = before + count
        self.tokens_left -= count
        self.prefill_left -= count

    def add_decodes(self, sequences: list[Sequence]) -> None:
        """Give one token to each decoding sequence."""
        self.decodes += sequences
        self.tokens_left -= len(sequences)

    def add_drafts(self, sequence: Sequence, drafts: tuple[int, ...], grammars: tuple[GrammarMatcher, ...]) -> None:
        """Give drafts to a decoding sequence of this step, all of whose tokens are known; nothing is removed later.

        `grammars` are copies of its grammar after each draft; empty without a grammar.
        """
        self.drafting[sequence] = None
        sequence.drafts, sequence.draft_grammars = drafts, grammars
        self.tokens_left -= len(drafts)

    def remove(self, sequence: Sequence) -> None:
        """Take back the tokens and blocks of a sequence in this step."""
        self.new_blocks.pop(sequence, None)
        self.copies.pop(sequence, None)
        if (count := self.chunks.pop(sequence, 0)) > 0:
            self.tokens_left += count
            self.prefill_left += count
        elif sequence in self.decodes:
            self.decodes.remove(sequence)
            self.tokens_left += 1

    def build(self, step_id: int, released: tuple[int, ...], now: float) -> InFlightStep:
        """Build the plan and advance num_scheduled_tokens of every sequence in it.

        Rows with one token come first. For a sequence that is not in the runner the plan has a NewSequence and all its
        blocks; for the others it has their new blocks only.
        """
        chunks = sorted(self.chunks.items(), key=lambda item: item[1] != 1)
        drafting = self.drafting
        decodes = [each for each in self.decodes if each not in drafting] if drafting else self.decodes
        count_decodes = len(decodes)
        sequences = [*decodes, *(sequence for sequence, _ in chunks), *drafting]
        starts = [sequence.num_scheduled_tokens for sequence in sequences]
        counts = [1] * count_decodes + [count for _, count in chunks] + [1 + len(each.drafts) for each in drafting]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        # commit() relies on this: decode row i has sample i.
        samples = list(range(count_decodes))
        sample_rows = samples[:]
        input_ids = _next_ids(decodes)
        for row, (sequence, count) in enumerate(chunks, start=count_decodes):
            start, token_ids = sequence.num_scheduled_tokens, sequence.token_ids
            end, known = start + count, len(token_ids)
            input_ids += token_ids[start:end]
            if end > known:
                input_ids.append(LAST_SAMPLED)
            sequence.num_scheduled_tokens = end
            # Only behind the last known token there is something to sample.
            if end == known + sequence.num_pending_samples:
                sequence.num_pending_samples += 1
                samples.append(len(sample_rows))
                sample_rows.append(row)
            else:
                samples.append(-1)
        num_drafts = _add_draft_rows(drafting, input_ids, samples, sample_rows) if drafting else []
        masked, masked_by = _masked(sequences, sample_rows, num_drafts) if self.has_grammars else ([], ())
        # Listed before _new_block_rows() marks them as known to the runner.
        new_to_runner = [sequence for sequence in sequences if not sequence.is_in_runner]
        states = NO_STATES if self.checkpoints is None else self.checkpoints.plan(sequences, starts, ends)
        plan = StepPlan(
            step_id=step_id,
            released_slots=released,
            new_sequences=tuple(sequence.to_new_sequence() for sequence in new_to_runner),
            slots=_packed([sequence.slot for sequence in sequences]),
            num_new_tokens=_packed(counts),
            start_positions=_packed(starts),
            new_blocks=self._new_block_rows(new_to_runner),
            input_ids=_packed(input_ids),
            sample_rows=_packed(sample_rows),
            block_copies=_table([pair for pairs in self.copies.values() for pair in pairs], 2),
            masked_samples=_packed(masked),
            state_loads=states.load_rows,
            state_saves=states.save_rows,
            num_drafts=_packed(num_drafts),
        )
        num_prefill_tokens = sum(count for _, count in chunks if count > 1)
        epochs = [sequence.epoch for sequence in sequences]
        return InFlightStep(
            plan, sequences, epochs, starts, ends, samples, count_decodes, num_prefill_tokens, now,
            frozenset(self.copies), masked_by, states.loads, states.saves, dict(states.draft_states),
        )  # fmt: skip

    def _new_block_rows(self, new_to_runner: list[Sequence]) -> Int32:
        """Return rows (slot, group, index, block): all blocks of new sequences, new blocks of the others."""
        rows: list[tuple[int, int, int, int]] = []
        for sequence in new_to_runner:
            assert sequence.table is not None
            sequence.is_in_runner = True
            self.new_blocks.pop(sequence, None)
            rows += [(sequence.slot, *held) for held in sequence.table.held()]
        for sequence, blocks in self.new_blocks.items():
            rows += [(sequence.slot, *new) for new in blocks]
        return _table(rows, 4)


def _add_draft_rows(
    drafting: Iterable[Sequence], input_ids: list[int], samples: list[int], sample_rows: list[int]
) -> list[int]:
    """Append the rows of sequences with drafts to a step's ids, samples and sample rows.

    Returns the drafts of each sample row.
    """
    num_drafts = [0] * len(sample_rows)
    for sequence in drafting:
        count = len(sequence.drafts)
        input_ids += (sequence.token_ids[-1], *sequence.drafts)
        sequence.num_scheduled_tokens += 1 + count
        sequence.num_pending_samples += 1 + count
        sample_rows.append(len(samples))
        samples.append(len(num_drafts))
        num_drafts.append(count)
    return num_drafts


def _masked(
    sequences: list[Sequence], sample_rows: list[int], num_drafts: list[int]
) -> tuple[list[int], tuple[tuple[Sequence, GrammarMatcher], ...]]:
    """Return the samples of sequences with a grammar, and (sequence, its grammar before the sample) of each."""
    masked, masked_by, sample = list[int](), list[tuple[Sequence, GrammarMatcher]](), 0
    for sample_row, row in enumerate(sample_rows):
        sequence, num_samples = sequences[row], 1 + num_drafts[sample_row] if num_drafts else 1
        if sequence.grammar is not None:
            masked += range(sample, sample + num_samples)
            masked_by += [(sequence, each) for each in (sequence.grammar, *sequence.draft_grammars)]
        sample += num_samples
    return masked, tuple(masked_by)


def _next_ids(decodes: list[Sequence]) -> list[int]:
    """Return the next input id of each; counts one more scheduled token and pending sample."""
    input_ids = []
    for sequence in decodes:
        start, token_ids = sequence.num_scheduled_tokens, sequence.token_ids
        input_ids.append(token_ids[start] if start < len(token_ids) else LAST_SAMPLED)
        sequence.num_scheduled_tokens = start + 1
        sequence.num_pending_samples += 1
    return input_ids


def _table(rows: Items[tuple[int, ...]], columns: int) -> Int32:
    """Return an int32 array [rows, columns]; usually it has no rows."""
    return np.array(rows, np.int32).reshape(-1, columns) if rows else np.empty((0, columns), np.int32)


def _packed(numbers: Items[int]) -> Int32:
    """Return an int32 array, through array(): three times as fast as numpy for a list of ints."""
    return np.frombuffer(array("i", numbers), np.int32)
