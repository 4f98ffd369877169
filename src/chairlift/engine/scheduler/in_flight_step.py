"""InFlightStep: a step that the runner computes, and the sequences behind its rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chairlift.engine.kv.state_checkpoint_pool import CheckpointId
from chairlift.engine.sequence import Sequence, SequenceStatus
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.structured.grammar_matcher import GrammarMatcher


class StepRow(NamedTuple):
    """One sequence's part of an in-flight step."""

    sequence: Sequence
    epoch: int  # the sequence's epoch at launch
    start: int  # num_scheduled_tokens before
    end: int  # num_scheduled_tokens after
    sample: int  # index among the sample rows, -1 when no token is sampled


class StateSave(NamedTuple):
    """A state that a step saves."""

    row: int  # row of the plan
    position: int  # number of leading tokens of the sequence whose state it is; the end of a full block
    checkpoint: CheckpointId  # held by the step
    is_rolling: bool  # whether it replaces the sequence's last rolling checkpoint


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A plan and the sequences behind its rows, in columns: a step has hundreds of rows.

    Attributes:
        plan: the plan that the runner received.
        sequences, epochs, starts, ends, sample_indices: see StepRow.
        num_decodes: leading rows with one sampled token: of these row i is sample row i.
        num_prefill_tokens: tokens of rows with more than one token.
        scheduled_at: seconds.
        forked: sequences that start in it with a copy of another sequence's block.
        masked_by: (sequence, its grammar before the sample) of the plan's masked samples, in its order.
        state_loads: checkpoints that it loads into slots; held by it.
        state_saves: states that it saves.
        draft_states: by (row, position) the checkpoint of a state after a row's known token or one of its drafts, held
            by the step until it is committed.
    """

    plan: StepPlan
    sequences: list[Sequence]
    epochs: list[int]
    starts: list[int]
    ends: list[int]
    sample_indices: list[int]
    num_decodes: int
    num_prefill_tokens: int
    scheduled_at: float
    forked: frozenset[Sequence] = frozenset()
    masked_by: tuple[tuple[Sequence, GrammarMatcher], ...] = ()
    state_loads: tuple[CheckpointId, ...] = ()
    state_saves: tuple[StateSave, ...] = ()
    draft_states: dict[tuple[int, int], CheckpointId] = field(default_factory=dict)

    def num_drafts_of(self, row: int) -> int:
        """Return the drafts among the tokens of a row."""
        num_drafts, sample = self.plan.num_drafts, self.sample_indices[row]
        return int(num_drafts[sample]) if len(num_drafts) and sample >= 0 else 0

    @property
    def mask_grammars(self) -> list[GrammarMatcher]:
        """Grammars of the masked samples, in the plan's order; those after drafts are copies."""
        return [grammar for _, grammar in self.masked_by]

    @property
    def open_grammars(self) -> list[GrammarMatcher]:
        """Grammars of the masked rows whose sequences have not finished, in the plan's order."""
        finished = SequenceStatus.FINISHED
        return [
            each.grammar for each, grammar in self.masked_by if each.grammar is grammar and each.status is not finished
        ]

    @property
    def checkpoints(self) -> Iterator[CheckpointId]:
        """The checkpoints that it holds."""
        yield from self.state_loads
        yield from (save.checkpoint for save in self.state_saves)
        yield from self.draft_states.values()

    @property
    def rows(self) -> list[StepRow]:
        """The columns as rows."""
        columns = zip(self.sequences, self.epochs, self.starts, self.ends, self.sample_indices, strict=True)
        return [StepRow(*row) for row in columns]
