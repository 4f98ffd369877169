"""Drafts change no token: random runs with a drafter against each request alone without one, on real models.

The drafter is right about some tokens and wrong about others. Runs have preemptions, aborts, chunks, prefix hits and
windows, and models keep a state.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.engine.runner.base import Runner
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.select_model_config import read_config
from chairlift.model.runner.torch_runner import TorchRunner
from support_bridged_models import save_bridged
from support_drafters import ExpectedDrafter
from support_forks import TORCH_MODULES, forked_children
from support_models import save_tiny
from support_native import need_native
from support_ranks import KeptRanks
from support_scheduling_runs import VOCAB_SIZE, MakeRunner, Played, alone, check_run, scheduling_run
from support_shares import FULL

SEEDS = 40 if FULL else 3
RANK_SEEDS = 12 if FULL else 3
BRIDGED_KINDS = ("gpt2", "gemma2", "diffllama")
"""The last one's attention is its own: it has no paged attention, and reads the cache sequence by sequence."""

KINDS = ("llama", "gemma3", "qwen3", "qwen3_5", "lfm2", "granite_hybrid")


def runner_of(folder: Path, start: Callable[[RunnerConfig], Runner] = TorchRunner, **options: Any) -> MakeRunner:
    """Return a function that makes runners of a model; `start` makes one of its config."""

    def make(num_blocks: int, block_size: int, max_batch_tokens: int) -> Runner:
        # Blocks of 16 tokens are those of the native kernels.
        num_blocks = max(2, -(-num_blocks * block_size // 16)) + 4
        return start(RunnerConfig(
            model=str(folder), device="cpu", block_size=16, num_blocks=num_blocks, max_batch_tokens=max_batch_tokens,
            max_running_requests=16, **options,
        ))  # fmt: skip

    return make


def check_seed(folder: Path, seed: int, reference: MakeRunner | None = None, **options: Any) -> Played:
    """Check the run of a seed with drafts; returns what it made. `reference` runs each request alone, without any."""
    num_groups = len(read_config(folder).layer_groups.windows)
    run, make_runner = scheduling_run(seed, num_groups), runner_of(folder, **options)
    expected = alone(run, reference or make_runner)
    rng = random.Random(seed)
    drafter = ExpectedDrafter(
        rng, lambda sequence: expected[sequence.request_id], VOCAB_SIZE, wrong=(0.0, 0.2, 1.0)[seed % 3]
    )
    return check_run(run, make_runner, expected, drafter, max_drafts=rng.choice([3, 8]))


def check_seeds(folder: Path, first: int, count: int = SEEDS, **options: Any) -> None:
    torch.set_num_threads(1)
    counters = [check_seed(folder, seed, **options).counters for seed in range(first, first + count)]
    confirmed = sum(each.confirmed_draft_tokens for each in counters)
    rejected = sum(each.draft_tokens for each in counters) - confirmed
    # In the few seeds of `make test` no draft may be wrong.
    assert confirmed > 0 and rejected >= FULL


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", KINDS)
def test_in_torch(kind: str, tmp_path: Path) -> None:
    check_seeds(save_tiny(kind, tmp_path), 0, dtype="float64", attention_backend="torch")


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        ("bfloat16", "none"),
        ("float32", "none"),
        ("bfloat16", "int8"),
        ("bfloat16", "int8-channel"),
        ("bfloat16", "int4"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_on_the_native_kernels(kind: str, dtype: str, quantization: str, tmp_path: Path) -> None:
    need_native()
    check_seeds(save_tiny(kind, tmp_path), 100, dtype=dtype, quantization=quantization)


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", BRIDGED_KINDS)
def test_in_modules_of_transformers(kind: str, tmp_path: Path) -> None:
    check_seeds(save_bridged(kind, tmp_path), 200, dtype="float64", attention_backend="torch")


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_on_two_ranks(kind: str, tmp_path: Path) -> None:
    """The ranks of all runs, with drafts and without, are the same two; each samples and confirms by itself."""
    kept = list[KeptRanks]()

    def start(config: RunnerConfig) -> KeptRanks:
        kept.extend([] if kept else [KeptRanks(config)])
        kept[0].num_blocks = config.num_blocks
        return kept[0]

    try:
        with forked_children(TORCH_MODULES):
            check_seeds(save_tiny(kind, tmp_path), 300, RANK_SEEDS, start=start, dtype="float64", kernels="torch")
    finally:
        for each in kept:
            each.close()
