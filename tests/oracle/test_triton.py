"""Whole runs with the kernels of GPUs by Triton's interpreter, in float32, with random requests and limits.

Greedy tokens equal transformers' `generate()`, but where its two likeliest are within NEAR_TIE. With `deterministic`
every request has exactly the tokens that it has alone.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.core.request import GenerateRequest
from chairlift.engine.runner.base import Runner
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.select_model_config import read_config
from chairlift.model.runner.torch_runner import TorchRunner
from support_interpreted_gpu import interpret_gpu
from support_models import save_tiny, tiny_hf_model
from support_oracle import ARCHITECTURES
from support_scheduling_runs import MakeRunner, Played, alone, check_run, play, scheduling_run
from support_shares import FULL

NEAR_TIE = 1e-4
SEEDS = range(24) if FULL else range(1)
DETERMINISTIC_SEEDS = range(12) if FULL else range(1)
SMALL = {"most_requests": 4, "longest_prompt": 20, "most_tokens": 5} if FULL else {
    "most_requests": 2, "longest_prompt": 5, "most_tokens": 2}  # fmt: skip


@cache
def reference(architecture: str) -> Any:
    torch.set_num_threads(1)
    return tiny_hf_model(architecture, 1, torch.float32)


def make_runner_of(folder: Path, *, deterministic: bool = False) -> MakeRunner:
    def make(num_blocks: int, block_size: int, max_batch_tokens: int) -> Runner:
        config = RunnerConfig(
            model=str(folder), dtype="float32", device="cpu", block_size=block_size, num_blocks=num_blocks,
            max_batch_tokens=max_batch_tokens, max_running_requests=16, attention_backend="triton",
            deterministic=deterministic,
        )  # fmt: skip
        return TorchRunner(config)

    return make


def check_greedy(architecture: str, request: GenerateRequest, tokens: list[int]) -> None:
    """Compare greedy tokens with transformers'; after a near tie nothing is compared."""
    eos = list(request.eos_token_ids) or None
    made = reference(architecture).generate(
        torch.tensor([request.prompt_token_ids]), max_new_tokens=request.params.max_tokens, do_sample=False,
        eos_token_id=eos, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    expected = made.sequences[0, len(request.prompt_token_ids) :].tolist()
    for at, (ours, theirs) in enumerate(zip(tokens, expected, strict=False)):
        if ours != theirs:
            best, second = made.logits[at][0].topk(2).values.tolist()
            assert best - second < NEAR_TIE, f"token {at} of {request} differs, the gap is {best - second}"
            return
    assert len(tokens) == len(expected), request


def groups_of(folder: Path) -> int:
    return len(read_config(folder).layer_groups.windows)


def check_greedy_run(architecture: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny(architecture, tmp_path, 1)
    interpret_gpu(monkeypatch)
    run = scheduling_run(seed, groups_of(folder), **SMALL)
    greedy = [
        replace(each, params=replace(each.params, temperature=0.0, top_k=None, top_p=1.0)) for each in run.requests
    ]
    played: Played = play(replace(run, requests=tuple(greedy), aborts={}), make_runner_of(folder))
    for request in greedy:
        assert played.last[request.request_id].error is None
        check_greedy(architecture, request, played.tokens[request.request_id])


@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_tokens_equal_generate(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_greedy_run(ARCHITECTURES[(6 + seed) % len(ARCHITECTURES)], seed, tmp_path, monkeypatch)


@pytest.mark.parametrize("seed", range(8) if FULL else [3])
@pytest.mark.parametrize("kind", ["gemma4", "gemma4_dense", "gemma4_moe"])
def test_greedy_tokens_of_layers_with_several_shapes_equal_generate(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_greedy_run(kind, seed, tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("seed", DETERMINISTIC_SEEDS)
def test_deterministic_tokens_are_those_of_each_request_alone(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny(("qwen3", "mistral", "gemma3")[seed % 3], tmp_path, 1)
    interpret_gpu(monkeypatch)
    make_runner = make_runner_of(folder, deterministic=True)
    run = scheduling_run(100 + seed, groups_of(folder), **SMALL)
    check_run(run, make_runner, alone(run, make_runner))
