"""Scenario loads: the workloads and a step time model of the scenarios, fixed so that results stay comparable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.bench.workload.generators import between
from chairlift.bench.workload.workload import Workload, WorkloadRequest

LARGE_GPU = SimStepModel(
    step=0.008, row=3e-5, prefill_token=2.5e-5, context_token=2e-8, prefill_pair=2e-9,
    origin="about what an 8B model does on one large GPU: most of a step is reading weights",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests that arrive at a constant mean rate.

    Attributes:
        rate: requests per second.
        prompts: least and most prompt tokens.
        outputs: least and most output tokens.
        tenant: tenant of the requests.
        priority: priority of the requests.
    """

    rate: float
    prompts: tuple[int, int]
    outputs: tuple[int, int]
    tenant: str = ""
    priority: int = 0


def interarrival_seconds(rng: Random, rate: float) -> float:
    """Return the seconds until the next arrival of a Poisson process."""
    return -math.log1p(-rng.random()) / rate


def together(streams: Sequence[Stream], seconds: float, seed: int) -> Workload:
    """Return a workload of several streams, each an independent Poisson process of `seconds` duration."""
    items = []
    for number, stream in enumerate(streams):
        rng = Random(f"stream {number} {seed}")
        at = interarrival_seconds(rng, stream.rate)
        while at < seconds:
            prompt = tuple(between(rng, 0, 9_999) for _ in range(between(rng, *stream.prompts)))
            items.append(WorkloadRequest(
                at=at, prompt_token_ids=prompt, output_tokens=between(rng, *stream.outputs), tenant=stream.tenant,
                priority=stream.priority,
            ))  # fmt: skip
            at += interarrival_seconds(rng, stream.rate)
    items.sort(key=lambda item: item.at)
    return Workload(name="streams", seed=seed, items=tuple(items))


def at_once(count: int, prompts: tuple[int, int], outputs: tuple[int, int], seed: int) -> Workload:
    """Return a workload of `count` requests that all arrive at the start."""
    rng = Random(f"at once {count} {seed}")
    items = []
    for _ in range(count):
        prompt = tuple(between(rng, 0, 9_999) for _ in range(between(rng, *prompts)))
        items.append(WorkloadRequest(at=0.0, prompt_token_ids=prompt, output_tokens=between(rng, *outputs)))
    return Workload(name="at once", seed=seed, items=tuple(items))
