"""A draft model changes no token: random runs on real models with one that agrees, and one with other weights.

With the same weights every draft is confirmed, whether a request is sampled or not.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.config import SchedulerConfig, SpeculationConfig
from chairlift.engine.drafters.draft_model import MAX_STEP_TOKENS, DraftModelDrafter
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.base import Runner
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.select_model_config import read_config
from chairlift.model.runner.torch_runner import TorchRunner
from support_engine import make_request, submit
from support_models import save_tiny
from support_native import need_native
from support_scheduling_runs import alone, check_run, scheduling_run
from support_shares import FULL

SEEDS = 20 if FULL else 3
KINDS = {"llama": "llama", "gemma3": "llama", "qwen3": "gemma3", "qwen3_5": "qwen3"}
"""By kind of the target model the kind of the draft model."""

TORCH = {"dtype": "float64", "attention_backend": "torch"}
NATIVE = {"dtype": "bfloat16"}


def runner_of(folder: Path, num_blocks: int, max_batch_tokens: int = MAX_STEP_TOKENS, **options: str) -> Runner:
    return TorchRunner(RunnerConfig(
        model=str(folder), device="cpu", block_size=16, num_blocks=num_blocks, max_batch_tokens=max_batch_tokens,
        max_running_requests=16, **options,
    ))  # fmt: skip


def confirmed_share(target: Path, draft: Path, **options: str) -> float:
    """Return the share of confirmed drafts of two greedy requests and two sampled ones."""
    config = SchedulerConfig(
        speculation=SpeculationConfig(method="draft_model", model="draft", num_speculative_tokens=4)
    )
    loop = EngineLoop(runner_of(target, 100, 512, **options), config, draft_runner=runner_of(draft, 100, **options))
    loop.start()
    try:
        for number in range(4):
            request = make_request(str(number), range(20 + number, 30 + 9 * number), 60)
            if number >= 2:
                params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=60, seed=number)
                request = replace(request, params=params.with_defaults({}, max_tokens=1, seed=0))
            submit(loop, request)
        while not loop.is_idle:
            loop.step()
        assert loop.check_integrity() == []
        counters = loop.scheduler.counters
        assert counters.output_tokens == 240 and counters.draft_tokens
        return counters.confirmed_draft_tokens / counters.draft_tokens
    finally:
        loop.stop()


@pytest.mark.parametrize("options", [TORCH, NATIVE], ids=["torch", "native"])
def test_with_the_same_weights_every_draft_is_confirmed(options: dict[str, str], tmp_path: Path) -> None:
    need_native()
    torch.set_num_threads(1)
    folder = save_tiny("llama", tmp_path / "target")
    assert confirmed_share(folder, folder, **options) == 1.0
    assert confirmed_share(folder, save_tiny("llama", tmp_path / "other", seed=1), **options) < 0.3


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [TORCH, NATIVE], ids=["torch", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_runs_give_the_tokens_of_each_request_alone(kind: str, options: dict[str, str], tmp_path: Path) -> None:
    need_native()
    torch.set_num_threads(1)
    target, draft = save_tiny(kind, tmp_path / "target"), save_tiny(KINDS[kind], tmp_path / "draft")
    num_groups = len(read_config(target).layer_groups.windows)

    def make_runner(num_blocks: int, block_size: int, max_batch_tokens: int) -> Runner:
        return runner_of(target, max(2, -(-num_blocks * block_size // 16)) + 4, max_batch_tokens, **options)

    # Without these a sequence has no drafts: rows of several tokens, and saved states.
    runs = (scheduling_run(seed, num_groups) for seed in range(200, 400))
    runs_with_drafts = (each for each in runs if each.config.max_chunk_tokens != 1 and each.enable_prefix_caching)
    num_drafts = 0
    for seed, run in zip(range(SEEDS), runs_with_drafts, strict=False):
        runner = runner_of(target if seed % 3 == 0 and kind != "qwen3_5" else draft, 10 + 20 * (seed % 2), **options)
        drafter = DraftModelDrafter(
            runner, runner.start(), max_sequences=4 + 12 * (seed % 2), enable_prefix_caching=run.enable_prefix_caching
        )
        played = check_run(run, make_runner, alone(run, make_runner), drafter, max_drafts=4)
        num_drafts += played.counters.draft_tokens
        assert not drafter.is_off and drafter.check_integrity() == []
        runner.stop()
    assert num_drafts
