"""A step on its way: the draft while the scheduler fills it, the flight while the runner has it."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from chairlift.engine.kv.cache import NewBlock
from chairlift.engine.plan import LAST_SAMPLED, StepPlan
from chairlift.engine.sequence import Sequence


class Row(NamedTuple):
    """One sequence's part in a flight."""

    sequence: Sequence
    ride: int  # the sequence's ride when it was launched
    start: int  # num_scheduled before
    end: int  # num_scheduled after
    sample: int  # index among the sample rows, -1 when nothing is drawn


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan and the sequences behind its rows."""

    plan: StepPlan
    rows: list[Row]
    num_prefill_tokens: int


@dataclass(slots=True)
class Draft:
    """The step being filled.

    Attributes:
        tokens_left: of the whole step.
        prefill_left: of the step's prompt tokens.
        rows: tokens handed to each sequence.
        prompts: those of them that got prompt tokens, in order.
        new_blocks: blocks that a sequence got in this step.
        in_flight: launches on their way.
        preempted: whether somebody had to leave for it.
    """

    tokens_left: int
    prefill_left: int
    in_flight: int = 0
    rows: dict[Sequence, int] = field(default_factory=dict)
    prompts: list[Sequence] = field(default_factory=list)
    new_blocks: dict[Sequence, list[NewBlock]] = field(default_factory=dict)
    preempted: bool = False

    def give_prefill(self, sequence: Sequence, count: int) -> None:
        """Hand prompt tokens to a sequence, on top of what it has."""
        if sequence not in self.rows:
            self.rows[sequence] = 0
            self.prompts.append(sequence)
        self.rows[sequence] += count
        self.tokens_left -= count
        self.prefill_left -= count

    def take_back(self, sequence: Sequence) -> None:
        """Undo what the sequence got in this step."""
        count = self.rows.pop(sequence, 0)
        self.new_blocks.pop(sequence, None)
        self.tokens_left += count
        if sequence in self.prompts:
            self.prompts.remove(sequence)
            self.prefill_left += count

    def launch(self, step_id: int, released: tuple[int, ...]) -> Flight:
        """Turn the draft into a plan and advance num_scheduled of everybody in it.

        Rows with one token come first. A sequence that the runner does not know brings its boarding card and every
        block it holds; the others bring their new blocks only.
        """
        singles = [item for item in self.rows.items() if item[1] == 1]
        chunks = [item for item in self.rows.items() if item[1] != 1]
        rows: list[Row] = []
        slots: list[int] = []
        starts: list[int] = []
        counts: list[int] = []
        input_ids: list[int] = []
        sample_rows: list[int] = []
        admitted = []
        new_blocks: list[tuple[int, int, int, int]] = []
        for sequence, count in singles + chunks:
            slot, start, token_ids = sequence.slot, sequence.num_scheduled, sequence.token_ids
            end = start + count
            known = len(token_ids)
            sample = -1
            if end == known + sequence.num_pending:
                sample = len(sample_rows)
                sample_rows.append(len(rows))
            input_ids += token_ids[start:end]
            if end > known:
                input_ids.append(LAST_SAMPLED)
            if not sequence.known:
                assert sequence.table is not None
                sequence.known = True
                admitted.append(sequence.boarding_card())
                new_blocks += [(slot, *held) for held in sequence.table.held()]
            elif sequence in self.new_blocks:
                new_blocks += [(slot, *new) for new in self.new_blocks[sequence]]
            if sample >= 0:
                sequence.num_pending += 1
            sequence.num_scheduled = end
            rows.append(Row(sequence, sequence.ride, start, end, sample))
            slots.append(slot)
            starts.append(start)
            counts.append(count)
        plan = StepPlan(
            step_id=step_id,
            released=released,
            admitted=tuple(admitted),
            slots=np.array(slots, np.int32),
            num_new_tokens=np.array(counts, np.int32),
            start_positions=np.array(starts, np.int32),
            new_blocks=np.array(new_blocks, np.int32).reshape(-1, 4),
            input_ids=np.array(input_ids, np.int32),
            sample_rows=np.array(sample_rows, np.int32),
        )
        return Flight(plan, rows, len(input_ids) - len(singles))
