"""RunnerTiming: seconds of the native runner by kind of operation, and the engine's step stats."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from chairlift.engine.client.base import EngineClient
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.step_stats import StepStats
from chairlift.model.backends.decoder_program import DecoderProgram, linears
from chairlift.model.kernels.cpu.packing import packed_weight
from chairlift.model.sampling.sampler import Sampler


@dataclass(slots=True)
class RunnerTiming:
    """Seconds since the start of the measurement.

    Attributes:
        prompts, decodes: seconds by kind of operation, in steps with prompts and in steps without.
        lm_head: seconds of the lm_head.
        sampling: seconds of the sampler, including the lm_head, but without layers that run in the same call.
        steps: the engine's step stats.
        weight_bytes: bytes that a step reads: all packed matrices, the lm_head's once.
    """

    prompts: Counter[str] = field(default_factory=Counter)
    decodes: Counter[str] = field(default_factory=Counter)
    lm_head: float = 0.0
    sampling: float = 0.0
    steps: list[StepStats] = field(default_factory=list)
    weight_bytes: int = 0

    @property
    def layers(self) -> float:
        """Seconds of all layers."""
        return self.prompts.total() + self.decodes.total()

    def parts(self, seconds: float) -> dict[str, float]:
        """Return the seconds of a run by part; they add up to `seconds`."""
        both = self.prompts + self.decodes
        scheduler = sum(step.schedule_ms + step.commit_ms for step in self.steps) / 1000
        runner = sum(step.launch_ms + step.collect_ms for step in self.steps) / 1000
        parts = {
            "products, steps with prompts": self.prompts["linear"],
            "products, decode steps": self.decodes["linear"],
            "attention": both["attention"],
            "other operations of layers": both.total() - both["linear"] - both["attention"],
            "head": self.lm_head,
            "draws": self.sampling - self.lm_head,
            "inputs, hand-over": runner - self.layers - self.sampling,
            "scheduler": scheduler,
        }
        return {**parts, "text, waiting": seconds - sum(parts.values())}


def weight_bytes(program: DecoderProgram) -> int:
    """Return the bytes of all packed matrices that a step reads."""
    parts = program._parts
    matrices = (*(each.weight for each in linears(parts)), parts.head)
    return sum(part.nbytes for matrix in matrices for part in packed_weight(matrix).memory)


@contextmanager
def watching(client: EngineClient) -> Iterator[RunnerTiming]:
    """Measure an engine in this process that runs on the native kernels, during the context."""
    timing, run, score, sample = RunnerTiming(), DecoderProgram.run_step, DecoderProgram.score, Sampler.sample

    def timed_run(program: DecoderProgram, plan: StepPlan, *arguments: Any) -> None:
        program.op_seconds()
        started_at = time.perf_counter()
        run(program, plan, *arguments)
        seconds = time.perf_counter() - started_at
        operations: Any = Counter(program.op_seconds())
        lm_head = operations.pop("lm_head", 0.0)
        operations["call"] += seconds - operations.total() - lm_head
        timing.lm_head += lm_head
        timing.weight_bytes = timing.weight_bytes or weight_bytes(program)
        (timing.decodes if plan.num_tokens == plan.num_rows else timing.prompts).update(operations)

    def timed_score(*arguments: Any) -> Any:
        started_at = time.perf_counter()
        result = score(*arguments)
        timing.lm_head += time.perf_counter() - started_at
        return result

    def timed_sample(*arguments: Any) -> Any:
        started_at, layers = time.perf_counter(), timing.layers
        result = sample(*arguments)
        timing.sampling += time.perf_counter() - started_at - (timing.layers - layers)
        return result

    patched: Any = (DecoderProgram, Sampler)
    patched[0].run_step, patched[0].score, patched[1].sample = timed_run, timed_score, timed_sample
    client.watch_steps(timing.steps.append)
    try:
        yield timing
    finally:
        client.watch_steps(None)
        patched[0].run_step, patched[0].score, patched[1].sample = run, score, sample
