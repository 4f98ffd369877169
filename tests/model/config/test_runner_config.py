"""RunnerConfig: survives encoding to bytes and decoding; its invalid values."""

from typing import Any

import pytest

from chairlift.model.config.runner_config import RunnerConfig, compute_dtype


def test_what_was_encoded_is_read_back() -> None:
    for config in (
        RunnerConfig(),
        RunnerConfig(model="/m", dtype="float64", device="cpu", block_size=7, num_blocks=9, max_memory=0.5, seed=3),
        RunnerConfig(max_memory=1 << 30, max_model_len=100),
    ):
        assert RunnerConfig.decode(config.encode()) == config


@pytest.mark.parametrize(
    ("options", "on_cpu", "dtype", "computed"),
    [
        ({}, True, "float16", "float32"), ({}, True, "float32", "float32"), ({}, True, "bfloat16", "bfloat16"),
        ({}, True, "float64", "float64"), ({}, False, "float16", "float16"),
        ({"quantization": "int8"}, True, "float16", "float32"), ({"quantization": "fp8"}, True, "float16", "float16"),
        ({"kernels": "torch"}, True, "float16", "float16"), ({"kv_cache_dtype": "fp8"}, True, "float16", "float16"),
        ({"tensor_parallel_size": 2}, True, "float16", "float16"), ({"block_size": 8}, True, "float16", "float16"),
        ({"attention_backend": "torch"}, True, "float16", "float16"),
    ],
)  # fmt: skip
def test_the_native_kernels_compute_with_float16_in_float32(
    options: dict[str, Any], on_cpu: bool, dtype: str, computed: str
) -> None:
    assert compute_dtype(RunnerConfig(**options), dtype, on_cpu=on_cpu) == computed
