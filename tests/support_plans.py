"""Driver: runs sequences on a Runner without a scheduler, with its own plans and blocks."""

import random
from dataclasses import dataclass, field

import numpy as np

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.runner.base import Runner, RunnerInfo
from chairlift.engine.step_plan import LAST_SAMPLED, NewSequence, StepPlan
from chairlift.engine.step_result import StepResult


def int32(*values: object) -> np.ndarray:
    """Make an int32 array."""
    return np.array(values, np.int32)


@dataclass
class DrivenSequence:
    """One sequence that a Driver runs.

    Attributes:
        tokens: prompt and outputs so far.
        prompt_length: number of prompt tokens.
        computed: number of tokens in the cache.
        tables: block ids by group.
        logprobs: entries of the outputs.
        errors: row errors of the sequence.
    """

    slot: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    computed: int = 0
    is_new: bool = True
    tables: list[list[int]] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    @property
    def outputs(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[self.prompt_length :]


class Driver:
    """Builds plans for a runner, and allocates its slots and blocks."""

    def __init__(self, runner: Runner, info: RunnerInfo, seed: int = 0) -> None:
        self._runner = runner
        self._info = info
        self._random = random.Random(seed)
        self._free = list(range(info.num_blocks))
        self._random.shuffle(self._free)
        self._slots = list(range(64))
        self._step = 0
        self._released: list[int] = []

    def add(self, prompt: list[int], params: SamplingParams, slot: int | None = None) -> DrivenSequence:
        """Add a sequence and allocate its slot; it can run from the next plan on."""
        new_slot = self._slots.pop(0) if slot is None else slot
        if slot is not None:
            self._slots.remove(slot)
        return DrivenSequence(new_slot, list(prompt), len(prompt), params, tables=[[] for _ in self._info.windows])

    def remove(self, sequence: DrivenSequence) -> None:
        """Free a sequence's slot and blocks, which are the next to be allocated."""
        self._released.append(sequence.slot)
        self._slots.insert(0, sequence.slot)
        for table in sequence.tables:
            self._free += table

    def restart(self, sequence: DrivenSequence) -> None:
        """Discard the computed tokens, as after a preemption; slot and token ids stay."""
        for table in sequence.tables:
            self._free = table + self._free
            table.clear()
        sequence.computed, sequence.is_new = 0, True

    def plan(self, parts: list[tuple[DrivenSequence, int]], *, ahead: bool = False) -> StepPlan:
        """Build a plan from (sequence, number of tokens).

        With `ahead` each input is the token sampled last.
        """
        parts = sorted(parts, key=lambda part: part[1] > 1)
        admitted, new_blocks, ids, sampled = [], [], [], []
        for row, (sequence, count) in enumerate(parts):
            if sequence.is_new:
                prior = len(sequence.tokens) - sequence.prompt_length
                admitted.append(NewSequence(sequence.slot, tuple(sequence.tokens), prior, sequence.params, (2,)))
                sequence.is_new = False
            end = sequence.computed + count
            for group, table in enumerate(sequence.tables):
                while len(table) * self._info.block_size < end:
                    table.append(self._free.pop())
                    new_blocks.append((sequence.slot, group, len(table) - 1, table[-1]))
            ids += [LAST_SAMPLED] if ahead else sequence.tokens[sequence.computed : end]
            if end >= len(sequence.tokens):
                sampled.append(row)
        plan = StepPlan(
            step_id=self._step, released_slots=tuple(self._released), new_sequences=tuple(admitted),
            slots=int32(*(sequence.slot for sequence, _ in parts)),
            num_new_tokens=int32(*(count for _, count in parts)),
            start_positions=int32(*(sequence.computed for sequence, _ in parts)),
            new_blocks=np.array(new_blocks, np.int32).reshape(-1, 4), input_ids=int32(*ids),
            sample_rows=int32(*sampled),
        )  # fmt: skip
        self._released = []
        self._step += 1
        for sequence, count in parts:
            sequence.computed += count
        return plan

    def apply_result(self, parts: list[tuple[DrivenSequence, int]], plan: StepPlan, result: StepResult) -> None:
        """Add the tokens, logprobs and errors of a result to its sequences."""
        assert result.step_id == plan.step_id
        sequences = {sequence.slot: sequence for sequence, _ in parts}
        for index, row in enumerate(plan.sample_rows.tolist()):
            sequence = sequences[int(plan.slots[row])]
            (token,) = result.tokens[result.cu_tokens[index] : result.cu_tokens[index + 1]].tolist()
            sequence.tokens.append(token)
            sequence.logprobs.append(result.logprobs[index] if result.logprobs else None)
        for row, error in result.row_errors:
            sequences[int(plan.slots[row])].errors.append(error)

    def step(self, parts: list[tuple[DrivenSequence, int]]) -> None:
        """Run one plan and apply its result."""
        plan = self.plan(parts)
        self._runner.launch(plan)
        self.apply_result(parts, plan, self._runner.collect())

    def generate(self, sequence: DrivenSequence, num_outputs: int, chunk: int = 10**9) -> list[int]:
        """Run one sequence alone until it has `count` outputs."""
        while len(sequence.outputs) < num_outputs:
            self.step([(sequence, min(chunk, len(sequence.tokens) - sequence.computed))])
        return sequence.outputs

    def generate_all(self, sequences: list[DrivenSequence], num_outputs: int, max_chunk: int) -> None:
        """Run sequences together, in steps that contain some of them with chunks of random size."""
        while True:
            unfinished = [sequence for sequence in sequences if len(sequence.outputs) < num_outputs]
            if not unfinished:
                return
            batch = self._random.sample(unfinished, self._random.randint(1, len(unfinished)))
            sizes = [
                min(self._random.randint(1, max_chunk), len(sequence.tokens) - sequence.computed) for sequence in batch
            ]
            self.step(list(zip(batch, sizes, strict=True)))
