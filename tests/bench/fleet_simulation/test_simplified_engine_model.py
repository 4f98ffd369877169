"""SimplifiedEngineModel: every token of random workloads comes at the time at which the real scheduler gives it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest
from chairlift.bench.fleet_simulation.simplified_engine_model import SimplifiedEngineModel
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.bench.simulation.simulation import SimMachine, simulate
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.engine.config import SchedulerConfig

COSTS = SimStepModel(step=0.02, row=0.0012, prefill_token=0.0005, context_token=4.4e-6, prefill_pair=5.7e-7)
BLOCK_SIZE = 16
Times = list[tuple[float, float, float]]
"""First token, longest gap and last token of each request."""


def serve(items: list[WorkloadRequest], model: SimplifiedEngineModel, tick: float) -> Times:
    """Serve a workload, with an update of the counts every `tick` seconds."""
    arrivals = [SimRequest(n, each.at, len(each.prompt_token_ids), each.output_tokens) for n, each in enumerate(items)]
    ends: dict[int, float] = {}
    place, next_tick = 0, tick
    while place < len(arrivals) or model.next_event_at < float("inf"):
        arrival = arrivals[place].arrived_at if place < len(arrivals) else float("inf")
        if next_tick < min(arrival, model.next_event_at):
            model.update_progress(next_tick)
            next_tick += tick
        elif arrival <= model.next_event_at:
            model.submit(arrivals[place], arrival)
            place += 1
        else:
            now = model.next_event_at
            ends |= {request.index: now for request in model.advance().finished}
    assert model.kv_usage_ratio == 0
    assert model.output_tokens == sum(item.output_tokens for item in items)
    return [(each.first_token_at or 0.0, each.longest_gap_seconds, ends[each.index]) for each in arrivals]


def random_items(rng: Random) -> list[WorkloadRequest]:
    """Return a workload: prompts of one token to several steps, outputs from one token on, bursts and pauses."""
    items, at = [], 0.0
    longest, rate, together = rng.choice((40, 400, 1500)), rng.choice((0.5, 3.0, 20.0)), rng.random()
    for _ in range(rng.randint(1, 30)):
        at += 0.0 if rng.random() < together else rng.expovariate(rate)
        num_tokens = rng.choice((1, 2, 16, 17, rng.randint(1, longest), rng.randint(1, longest)))
        output_tokens = rng.choice((1, 2, rng.randint(1, 60), rng.randint(1, 60)))
        items.append(WorkloadRequest(at=at, prompt_token_ids=(7,) * num_tokens, output_tokens=output_tokens))
    return items


def random_config(rng: Random) -> SchedulerConfig:
    return SchedulerConfig(
        max_running_requests=rng.choice((1, 2, 8, 64)), max_batch_tokens=rng.choice((32, 256, 2048)),
        max_prefill_tokens=rng.choice((None, 24, 200)), long_prefill_threshold=rng.choice((None, None, 16)),
        max_chunk_tokens=rng.choice((None, None, 100)), max_bypass=rng.choice((0, 1, 16)),
        protect_after_preemptions=rng.choice((1, 3)),
    )  # fmt: skip


def compare(seed: int) -> int:
    """Compare one random workload with the engine; return how many preemptions it had."""
    rng = Random(f"batch model {seed}")
    items, config = random_items(rng), random_config(rng)
    most = max(len(item.prompt_token_ids) + item.output_tokens for item in items)
    num_blocks = -(-most // BLOCK_SIZE) + rng.choice((1, 3, 10, 100_000))
    costs = replace(COSTS, confirmed_drafts=2.5 * (seed % 3 == 1))
    machine = SimMachine(step_model=costs, num_blocks=num_blocks, block_size=BLOCK_SIZE, enable_prefix_caching=False)
    result = simulate(Workload(name="random", seed=seed, items=tuple(items)), config, machine)
    expected = []
    for record in result.records:
        gaps = [after - before for before, after in pairwise(record.stamps)]
        expected.append((record.stamps[0], max(gaps, default=0.0), record.stamps[-1]))
    model = SimplifiedEngineModel(costs, config, num_blocks, BLOCK_SIZE)
    times = serve(items, model, tick=rng.choice((0.05, 1.0, 1e9)))
    assert [value for each in times for value in each] == pytest.approx([v for each in expected for v in each])
    assert model.busy_seconds == pytest.approx(sum(result.step_seconds))
    assert model.num_preemptions == result.preemptions
    return result.preemptions


@pytest.mark.parametrize("seeds", [(*range(8), 11, 13, 24, 28), pytest.param(range(1000), marks=pytest.mark.full)])
def test_every_token_comes_when_the_engine_gives_it(seeds: Sequence[int]) -> None:
    assert sum(compare(seed) for seed in seeds) > 0, "the workloads preempt nothing, so they test too little"
