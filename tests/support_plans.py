"""A driver that takes sequences through a Runner by plans it makes itself: no scheduler, no cache, blocks shuffled."""

import random
from dataclasses import dataclass, field

import numpy as np

from chairlift.core.sampling import SamplingParams
from chairlift.engine.runner.base import Runner, RunnerInfo
from chairlift.engine.step_plan import LAST_SAMPLED, NewSequence, StepPlan, StepResult


def int32(*values: object) -> np.ndarray:
    """Make an int32 array."""
    return np.array(values, np.int32)


@dataclass
class Ride:
    """One sequence on its way.

    Attributes:
        tokens: known, prompt and outputs.
        prompt_length: how many of them are prompt.
        computed: how many are in the cache.
        tables: block ids by group.
        logprobs: of the outputs.
        faults: that hit it.
    """

    slot: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    computed: int = 0
    fresh: bool = True
    tables: list[list[int]] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)

    @property
    def outputs(self) -> list[int]:
        """Tokens that were generated."""
        return self.tokens[self.prompt_length :]


class Driver:
    """Makes plans for a runner whose slots and blocks it deals out."""

    def __init__(self, runner: Runner, info: RunnerInfo, seed: int = 0) -> None:
        self._runner = runner
        self._info = info
        self._dice = random.Random(seed)
        self._free = list(range(info.num_blocks))
        self._dice.shuffle(self._free)
        self._slots = list(range(64))
        self._step = 0
        self._released: list[int] = []

    def board(self, prompt: list[int], params: SamplingParams, slot: int | None = None) -> Ride:
        """Seat a sequence; it rides from the next plan on."""
        taken = self._slots.pop(0) if slot is None else slot
        if slot is not None:
            self._slots.remove(slot)
        return Ride(taken, list(prompt), len(prompt), params, tables=[[] for _ in self._info.windows])

    def leave(self, ride: Ride) -> None:
        """Take a sequence's slot and blocks back; they are the next to be dealt."""
        self._released.append(ride.slot)
        self._slots.insert(0, ride.slot)
        for table in ride.tables:
            self._free += table

    def restart(self, ride: Ride) -> None:
        """Forget what is computed, as after a preemption or a void step; the slot and the tokens stay."""
        for table in ride.tables:
            self._free = table + self._free
            table.clear()
        ride.computed, ride.fresh = 0, True

    def plan(self, parts: list[tuple[Ride, int]], *, ahead: bool = False) -> StepPlan:
        """Make a plan from (ride, number of tokens); with `ahead` each brings the token that it samples last."""
        parts = sorted(parts, key=lambda part: part[1] > 1)
        admitted, new_blocks, ids, sampled = [], [], [], []
        for row, (ride, count) in enumerate(parts):
            if ride.fresh:
                prior = len(ride.tokens) - ride.prompt_length
                admitted.append(NewSequence(ride.slot, tuple(ride.tokens), prior, ride.params, (2,)))
                ride.fresh = False
            end = ride.computed + count
            for group, table in enumerate(ride.tables):
                while len(table) * self._info.block_size < end:
                    table.append(self._free.pop())
                    new_blocks.append((ride.slot, group, len(table) - 1, table[-1]))
            ids += [LAST_SAMPLED] if ahead else ride.tokens[ride.computed : end]
            if end >= len(ride.tokens):
                sampled.append(row)
        plan = StepPlan(
            step_id=self._step, released_slots=tuple(self._released), new_sequences=tuple(admitted),
            slots=int32(*(ride.slot for ride, _ in parts)), num_new_tokens=int32(*(count for _, count in parts)),
            start_positions=int32(*(ride.computed for ride, _ in parts)),
            new_blocks=np.array(new_blocks, np.int32).reshape(-1, 4), input_ids=int32(*ids),
            sample_rows=int32(*sampled),
        )  # fmt: skip
        self._released = []
        self._step += 1
        for ride, count in parts:
            ride.computed += count
        return plan

    def take(self, parts: list[tuple[Ride, int]], plan: StepPlan, result: StepResult) -> None:
        """Give each ride what the result has for it."""
        assert result.step_id == plan.step_id
        rides = {ride.slot: ride for ride, _ in parts}
        for index, row in enumerate(plan.sample_rows.tolist()):
            ride = rides[int(plan.slots[row])]
            (token,) = result.tokens[result.cu_tokens[index] : result.cu_tokens[index + 1]].tolist()
            ride.tokens.append(token)
            ride.logprobs.append(result.logprobs[index] if result.logprobs else None)
        for row, error in result.row_errors:
            rides[int(plan.slots[row])].faults.append(error)

    def step(self, parts: list[tuple[Ride, int]]) -> None:
        """Run one plan to its end."""
        plan = self.plan(parts)
        self._runner.launch(plan)
        self.take(parts, plan, self._runner.collect())

    def generate(self, ride: Ride, count: int, chunk: int = 10**9) -> list[int]:
        """Run one sequence alone until it has so many outputs."""
        while len(ride.outputs) < count:
            self.step([(ride, min(chunk, len(ride.tokens) - ride.computed))])
        return ride.outputs

    def generate_all(self, rides: list[Ride], count: int, max_chunk: int) -> None:
        """Run sequences together, in steps that take some of them by chunks of random size."""
        while True:
            hungry = [ride for ride in rides if len(ride.outputs) < count]
            if not hungry:
                return
            some = self._dice.sample(hungry, self._dice.randint(1, len(hungry)))
            sizes = [min(self._dice.randint(1, max_chunk), len(ride.tokens) - ride.computed) for ride in some]
            self.step(list(zip(some, sizes, strict=True)))
