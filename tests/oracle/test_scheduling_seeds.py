"""Tokens do not depend on the scheduling: 1,000 random runs against each request alone, in float64.

A seed decides requests, arrivals, aborts, block size, number of blocks, limits, policies, prefix caching and overlap.
`make test-all` takes all seeds, `make test` a few. A part of them runs on a simulated device and on two ranks, too.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from chairlift.core.engine_output import FinishReason
from chairlift.engine.runner.base import Runner
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.select_model_config import read_config
from chairlift.model.runner.torch_runner import TorchRunner
from support_device_runner import use_device
from support_device_stream import SimulatedStream
from support_forks import TORCH_MODULES, forked_children
from support_oracle import oracle
from support_ranks import KeptRanks
from support_scheduling_runs import MakeRunner, Played, alone, check_run, scheduling_run
from support_shares import FULL

SEEDS = 1000
SHARE = 20
DEVICE_SEEDS = 40
DEVICE_SHARE, QUICK_DEVICE_SEEDS = 2, (4, 5)
RANK_SEEDS = 40
RANK_SHARE = 2
PARTS = 20
"""Parts into which the seeds are divided, one test each."""

ARCHITECTURES = (("llama", None), ("gemma3", 20), ("qwen3", None), ("mistral", 20))


@cache
def num_groups(architecture: str, window: int | None) -> int:
    """Return the number of layer groups of a model."""
    config = read_config(oracle(architecture, window).folder)
    return len(config.layer_groups.windows)


def make_runner_of(
    architecture: str,
    window: int | None,
    use_cuda_graph: str = "auto",
    make: Callable[[RunnerConfig], Runner] = TorchRunner,
) -> MakeRunner:
    """Return a function that makes runners of a tiny model in float64."""
    folder = str(oracle(architecture, window).folder)

    def make_runner(num_blocks: int, block_size: int, max_batch_tokens: int) -> Runner:
        config = RunnerConfig(
            model=folder, dtype="float64", device="cpu", block_size=block_size, num_blocks=num_blocks,
            max_batch_tokens=max_batch_tokens, max_running_requests=16,
            use_cuda_graph=use_cuda_graph,
        )  # fmt: skip
        return make(config)

    return make_runner


def check_seed(seed: int) -> Played:
    """Check the run of a seed, without and with two steps in flight; returns what it made."""
    model = ARCHITECTURES[seed % len(ARCHITECTURES)]
    run, make_runner = scheduling_run(seed, num_groups(*model)), make_runner_of(*model)
    expected = alone(run, make_runner)
    other = replace(run, config=replace(run.config, overlap=not run.config.overlap))
    check_run(other, make_runner, expected)
    return check_run(run, make_runner, expected)


@pytest.mark.share(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_request_has_the_tokens_that_it_has_alone(part: int) -> None:
    torch.set_num_threads(1)
    size = (SEEDS if FULL else SHARE) // PARTS
    played = [check_seed(seed) for seed in range(part * size, (part + 1) * size)]  # neighbours have different models
    if FULL:  # what the seeds are for has happened
        assert sum(each.preemptions for each in played) > 0
        assert any(last.usage.cached_tokens for each in played for last in each.last.values())
        assert any(last.finish_reason is FinishReason.ABORT for each in played for last in each.last.values())


def check_seed_on_device(seed: int) -> int:
    """Check the run of a seed on a simulated device, with graphs and without; returns how many steps were graphs."""
    architecture, window = ARCHITECTURES[seed % len(ARCHITECTURES)]
    run = scheduling_run(seed, num_groups(architecture, window))
    num_replays = 0
    with pytest.MonkeyPatch.context() as patch:
        use_device(patch, SimulatedStream())
        expected = alone(run, make_runner_of(architecture, window, "off"))
        for graphs, overlap in (("on", True), ("on", False), ("off", True)):
            stream = SimulatedStream()
            use_device(patch, stream)
            timed = replace(run, config=replace(run.config, overlap=overlap))
            check_run(timed, make_runner_of(architecture, window, graphs), expected)
            num_replays += sum(entry.startswith("replay") for entry in stream.log)
    return num_replays


@pytest.mark.full
@pytest.mark.parametrize("part", range(DEVICE_SHARE))
def test_on_a_device_graphs_and_overlap_change_no_token(part: int) -> None:
    torch.set_num_threads(1)
    seeds = range(part, DEVICE_SEEDS, DEVICE_SHARE) if FULL else [QUICK_DEVICE_SEEDS[part]]
    assert sum(check_seed_on_device(seed) for seed in seeds) > 0


def check_seed_on_ranks(seed: int) -> None:
    """Check the run of a seed on two ranks, twice without a new start: with two steps in flight and without."""
    model = ARCHITECTURES[seed % len(ARCHITECTURES)]
    run = scheduling_run(seed, num_groups(*model))
    expected, kept = alone(run, make_runner_of(*model)), list[KeptRanks]()

    def make(config: RunnerConfig) -> KeptRanks:
        kept.extend([] if kept else [KeptRanks(config)])
        return kept[0]

    try:
        for overlap in (run.config.overlap, not run.config.overlap):
            timed = replace(run, config=replace(run.config, overlap=overlap))
            check_run(timed, make_runner_of(*model, make=make), expected)
    finally:
        for each in kept:
            each.close()


@pytest.mark.share(1)
@pytest.mark.parametrize("part", range(RANK_SHARE))
def test_on_two_ranks_every_request_has_the_tokens_that_it_has_alone(
    part: int,
) -> None:
    torch.set_num_threads(1)
    with forked_children(TORCH_MODULES):
        for seed in range(part, RANK_SEEDS, RANK_SHARE) if FULL else [part]:
            check_seed_on_ranks(seed)
