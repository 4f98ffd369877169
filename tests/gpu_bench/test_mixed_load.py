"""mixed_load.py: the workload is drawn as described, and a run reports what the engine generated."""

from typing import Any

import pytest
import torch

from chairlift.model.backends.loaded_model import LoadedModel
from gpu_bench.bench_shapes import SIZES
from gpu_bench.mixed_load import mixed_workload, run_mixed, shortened
from gpu_bench.runner_steps import load_random

TINY = SIZES["tiny"]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_random(TINY.small, torch.device("cpu"))


def test_lengths_are_uniform_in_the_range_and_the_same_for_every_vocabulary() -> None:
    workload, other = (mixed_workload(256, (100, 1024), vocab_size) for vocab_size in (151_936, 500))
    outputs = [item.output_tokens for item in workload.items]
    prompts = [len(item.prompt_token_ids) for item in workload.items]
    for lengths in (outputs, prompts):
        assert 100 <= min(lengths) < 120 and 1004 < max(lengths) <= 1024
        assert 530 < sum(lengths) / 256 < 594  # three standard errors around the mean
    assert outputs != prompts and workload.arrives_at_once
    assert [len(item.prompt_token_ids) for item in other.items] == prompts
    assert [item.output_tokens for item in other.items] == outputs
    assert max(max(item.prompt_token_ids) for item in other.items) < 500
    assert len({item.prompt_token_ids[:8] for item in workload.items}) == 256  # no shared prefixes
    assert mixed_workload(256, (100, 1024), 500) == other


def test_a_shortened_workload_has_the_first_requests_with_capped_outputs() -> None:
    whole = mixed_workload(9, (4, 12), 300)
    short = shortened(whole, 4, 6)
    assert len(short.items) == 4
    for item, original in zip(short.items, whole.items[:4], strict=True):
        assert item.prompt_token_ids == original.prompt_token_ids
        assert item.output_tokens == min(6, original.output_tokens)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_run_generates_every_token_of_the_workload(loaded: LoadedModel, overlap: bool) -> None:
    workload = mixed_workload(5, (4, 12), 300)
    result = run_mixed(loaded, workload, TINY.max_model_len, 60.0, overlap=overlap, num_blocks=64)
    assert result["is_complete"] and result["errors"] == []
    assert result["output_tokens"] == workload.output_tokens == result["output_tokens_of_workload"]
    assert result["output_tokens_per_second"] == workload.output_tokens / result["seconds"]
    assert result["engine"]["overlap"] is overlap and result["engine"]["num_blocks"] == 64
    assert not {"model", "free memory"} & set(result["engine"]["runner"])


def test_requests_are_cut_off_at_the_limit(loaded: LoadedModel) -> None:
    workload = mixed_workload(3, (100, 120), 300)
    result: dict[str, Any] = run_mixed(loaded, workload, 256, 1e-6, num_blocks=64)
    assert not result["is_complete"] and result["output_tokens"] < workload.output_tokens
    assert result["errors"]
