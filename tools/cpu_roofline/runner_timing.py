"""Watch: times what the native runner does in each step, and takes what the engine says of it."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from chairlift.engine.client.base import EngineClient
from chairlift.engine.stats import StepStats
from chairlift.engine.step_plan import StepPlan
from chairlift.model.kernels.cpu.decoder_program import DecoderProgram, linears, packed
from chairlift.model.sampling.sampler import Sampler


@dataclass(slots=True)
class RunnerTiming:
    """Seconds since the watch began.

    Attributes:
        prompts, decodes: of each kind of operation, in steps that brought prompts and in those that did not.
        head: of the head's products.
        draws: of the sampler, the head included, but not the layers where these are run with it.
        steps: as the engine saw them.
        weight_bytes: that the last step's program reads: all packed matrices, the head's once.
    """

    prompts: Counter[str] = field(default_factory=Counter)
    decodes: Counter[str] = field(default_factory=Counter)
    head: float = 0.0
    draws: float = 0.0
    steps: list[StepStats] = field(default_factory=list)
    weight_bytes: int = 0

    @property
    def layers(self) -> float:
        """Of all layers."""
        return self.prompts.total() + self.decodes.total()

    def parts(self, seconds: float) -> dict[str, float]:
        """Say where the seconds of a run went; the parts add up to them."""
        both = self.prompts + self.decodes
        decided = sum(step.schedule_ms + step.commit_ms for step in self.steps) / 1000
        run = sum(step.launch_ms + step.collect_ms for step in self.steps) / 1000
        found = {
            "products, steps with prompts": self.prompts["linear"],
            "products, decode steps": self.decodes["linear"],
            "attention": both["attend"],
            "other operations of layers": both.total() - both["linear"] - both["attend"],
            "head": self.head,
            "draws": self.draws - self.head,
            "inputs, hand-over": run - self.layers - self.draws,
            "scheduler": decided,
        }
        return {**found, "text, waiting": seconds - sum(found.values())}


def weight_bytes(program: DecoderProgram) -> int:
    """Return the bytes of all packed matrices that a step reads."""
    parts = program._parts
    matrices = (*(each.weight for each in linears(parts.layers)), parts.head)
    return sum(part.nbytes for matrix in matrices for part in packed(matrix).memory)


@contextmanager
def watching(client: EngineClient) -> Iterator[RunnerTiming]:
    """Watch an engine of this process on the native kernels, while the context lasts."""
    spent, run, score, sample = RunnerTiming(), DecoderProgram.run_step, DecoderProgram.score, Sampler.sample

    def timed_run(program: DecoderProgram, plan: StepPlan, *words: Any) -> None:
        program.op_seconds()
        began = time.perf_counter()
        run(program, plan, *words)
        took = time.perf_counter() - began
        operations: Any = Counter(program.op_seconds())
        head = operations.pop("head", 0.0)
        operations["call"] += took - operations.total() - head
        spent.head += head
        spent.weight_bytes = spent.weight_bytes or weight_bytes(program)
        (spent.decodes if plan.num_tokens == plan.num_rows else spent.prompts).update(operations)

    def timed_score(*words: Any) -> Any:
        began = time.perf_counter()
        found = score(*words)
        spent.head += time.perf_counter() - began
        return found

    def timed_sample(*words: Any) -> Any:
        began, layers = time.perf_counter(), spent.layers
        found = sample(*words)
        spent.draws += time.perf_counter() - began - (spent.layers - layers)
        return found

    patched: Any = (DecoderProgram, Sampler)
    patched[0].run_step, patched[0].score, patched[1].sample = timed_run, timed_score, timed_sample
    client.watch_steps(spent.steps.append)
    try:
        yield spent
    finally:
        client.watch_steps(None)
        patched[0].run_step, patched[0].score, patched[1].sample = run, score, sample
