"""InFlightStep: a step that the runner computes, and the sequences behind its rows."""

from collections.abc import Iterator
from dataclasses import dataclass
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
        num_decodes: leading rows with one sampled token: of these row i is sample i.
        num_prefill_tokens: tokens of rows with more than one token.
        scheduled_at: seconds.
        forked: sequences that start in it with a copy of another sequence's block.
        structured_sequences: sequences of the plan's masked samples, in its order.
        state_loads: checkpoints that it loads into slots; held by it.
        state_saves: states that it saves.
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
    structured_sequences: tuple[Sequence, ...] = ()
    state_loads: tuple[CheckpointId, ...] = ()
    state_saves: tuple[StateSave, ...] = ()

    @property
    def grammars(self) -> list[GrammarMatcher]:
        """Grammars of unfinished masked rows, in the plan's order; before launch, of all masked rows."""
        finished = SequenceStatus.FINISHED
        return [
            each.grammar
            for each in self.structured_sequences
            if each.grammar is not None and each.status is not finished
        ]

    @property
    def checkpoints(self) -> Iterator[CheckpointId]:
        """The checkpoints that it holds."""
        yield from self.state_loads
        yield from (save.checkpoint for save in self.state_saves)

    @property
    def rows(self) -> list[StepRow]:
        """The columns as rows."""
        columns = zip(self.sequences, self.epochs, self.starts, self.ends, self.sample_indices, strict=True)
        return [StepRow(*row) for row in columns]
