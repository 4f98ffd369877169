"""Parallel sizes: the rules as tables, and the check against memory."""

import re
from dataclasses import replace
from typing import Any

import pytest

from chairlift.bench.planning.model_memory import ModelMemory
from chairlift.bench.planning.model_shape import shape_of_content
from chairlift.bench.planning.parallel_sizes_and_memory import (
    DeviceMemory,
    fitting_replicas,
    gigabytes,
    max_context,
    max_pipeline,
    max_tensor,
    tensor_sizes,
)
from chairlift.core.errors import ConfigError
from support_planning import TINY, published_shape
from support_shares import for_each


def device(gigabytes: float) -> DeviceMemory:
    return DeviceMemory(total=int(gigabytes * 1e9), share=0.9, overhead=1_500_000_000)


def splits(name: str, gigabytes: float, length: int, gpus: int) -> list[tuple[int, int, int]]:
    memory = ModelMemory(shape=published_shape(name), dtype="bfloat16")
    fitting = fitting_replicas(memory, device(gigabytes), length, gpus)
    return [(each.sizes.tensor, each.sizes.pipeline, each.sizes.context) for each in fitting]


@pytest.mark.parametrize(
    ("name", "tensor", "sizes", "stages"),
    [
        ("Qwen3-0.6B", 1, [1], 14), ("Qwen3-8B", 1, [1], 16), ("Llama-3.2-1B", 1, [1], 8),
        ("llama-70b", 8, [1, 2, 4, 8], 16),
    ],
)  # fmt: skip
def test_sizes_by_model(name: str, tensor: int, sizes: list[int], stages: int) -> None:
    shape = published_shape(name)
    assert (max_tensor(shape), tensor_sizes(shape), max_pipeline(shape)) == (tensor, sizes, stages)


@for_each(
    ("heads", "kv_heads", "inter", "sizes"),
    [
        (64, 8, 28672, [1, 2, 4, 8]), (64, 4, 28672, [1, 2, 4, 8]), (64, 1, 28672, [1, 2, 4, 8]),
        (36, 4, 28672, [1, 2, 4]), (60, 20, 28672, [1, 2, 4]), (56, 8, 28674, [1, 2]), (9, 3, 28672, [1]),
        (60, 10, 28672, [1, 2]),
    ],
)  # fmt: skip
def test_tensor_sizes_fit_heads_and_mlp(heads: int, kv_heads: int, inter: int, sizes: list[int]) -> None:
    fields: dict[str, Any] = {
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": inter,
    }  # fmt: skip
    large = {"hidden_size": 8192, "num_hidden_layers": 80, "head_dim": 128, "model_type": "llama"}
    assert tensor_sizes(shape_of_content({**TINY, **large, **fields})) == sizes


def test_a_middle_model_has_at_most_four_tensor_devices_and_a_stage_two_layers() -> None:
    middle = replace(published_shape("llama-70b"), mlps=published_shape("llama-70b").mlps[:40])
    assert 9e9 < middle.parameters < 40e9 and tensor_sizes(middle) == [1, 2, 4]
    assert (
        max_pipeline(shape_of_content(TINY)) == 2
        and max_pipeline(shape_of_content(TINY | {"num_hidden_layers": 1})) == 1
    )


@for_each(("length", "size"), [(1, 1), (32_768, 1), (32_769, 2), (131_072, 2), (200_000, 4), (524_288, 4), (10**6, 8)])
def test_context_sizes_by_length(length: int, size: int) -> None:
    assert max_context(length) == size


@for_each(
    ("name", "gigabytes", "length", "gpus", "expected"),
    [
        ("Qwen3-8B", 80, 640, 8, [(1, 1, 1)]),
        ("Qwen3-8B", 14, 640, 8, [(1, 2, 1)]),
        ("llama-70b", 80, 640, 8, [(1, 3, 1), (2, 2, 1), (4, 1, 1), (8, 1, 1)]),
        ("llama-70b", 80, 640, 3, [(1, 3, 1)]),
        ("llama-70b", 200, 640, 2, [(1, 1, 1), (2, 1, 1)]),
        ("Llama-3.2-1B", 80, 100_000, 2, [(1, 1, 1), (1, 1, 2)]),
    ],
)
def test_splits_that_fit(
    name: str, gigabytes: float, length: int, gpus: int, expected: list[tuple[int, int, int]]
) -> None:
    assert sorted(splits(name, gigabytes, length, gpus)) == sorted(expected)
    assert splits(name, gigabytes, length, gpus)[0] == min(expected, key=lambda sizes: sizes[0] * sizes[1] * sizes[2])


def test_a_memory_that_is_too_small_names_what_is_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        splits("llama-70b", 24, 640, 2)
    error = caught.value
    assert error.details["option"] == "gpu_memory"
    # What is missing is what it takes: with it the split fits, with less it does not.
    more = error.details["missing"] / 0.9 / 1e9
    assert splits("llama-70b", 24 + more + 1e-3, 640, 2)
    with pytest.raises(ConfigError):
        splits("llama-70b", 24 + more - 1e-3, 640, 2)
    assert re.match(r"gpu_memory is too small by \d+\.\d GB: each of 2 devices \(tensor \d, ", error.message)


def test_sizes_for_people() -> None:
    assert [gigabytes(size) for size in (5e5, 2.5e8, 1e9, 1.234e11)] == ["0.5 MB", "250.0 MB", "1.0 GB", "123.4 GB"]
