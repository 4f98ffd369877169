"""check_options, refuse_float8: options that are invalid or do not go together are named, with what to do."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.runner_option_checks import check_options, refuse_float8
from support_shares import for_each


@for_each(
    ("options", "named"),
    [
        ({"kernels": "fast"}, "kernels"), ({"quantization": "int3"}, "quantization"),
        ({"cpu_threads": 0}, "cpu_threads"),
        ({"kernels": "torch", "quantization": "int8"}, "quantization"),
        ({"attention_backend": "torch", "quantization": "int8"}, "attention_backend"),
        ({"attention_backend": "reference", "kernels": "native"}, "attention_backend"),
        ({"attention_backend": "flash"}, "attention_backend"),
        ({"deterministic": True, "tensor_parallel_size": 4}, "deterministic"),
        ({"dtype": "fp16x"}, "dtype"), ({"model_impl": "vllm"}, "model_impl"), ({"model_impl": ""}, "model_impl"),
        ({"dtype": "half"}, "dtype"),  # an alias is replaced before it gets here
        ({"max_memory": 0}, "max_memory"), ({"max_memory": 1.5}, "max_memory"), ({"max_memory": 0.0}, "max_memory"),
        ({"kv_cache_dtype": "fp8", "kernels": "native"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "fp8", "quantization": "int8"}, "kv_cache_dtype"),
        ({"kernels": "native", "quantization": "fp8"}, "quantization"),
        ({"model_impl": "transformers", "quantization": "fp8"}, "quantization"),
        ({"max_model_len": 1}, "max_model_len"), ({"num_blocks": 0}, "num_blocks"),
        ({"enable_lora": True, "kernels": "native"}, "enable_lora"),
        ({"enable_lora": True, "quantization": "int8"}, "enable_lora"),
        ({"enable_lora": True, "model_impl": "transformers"}, "enable_lora"),
        ({"enable_lora": True, "tensor_parallel_size": 2}, "enable_lora"),
    ],
)  # fmt: skip
def test_invalid_options_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_options(RunnerConfig(**options))  # type: ignore[arg-type]
    assert caught.value.details["option"] == named


def test_a_cache_that_the_native_kernels_lack_says_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        check_options(RunnerConfig(kv_cache_dtype="fp8", quantization="int8"))
    assert caught.value.message == (
        "kv_cache_dtype 'fp8' is not for the native kernels, which quantization 'int8' selects and whose cache is "
        "bfloat16 or float32; set kv_cache_dtype to auto, or leave quantization out"
    )
    check_options(RunnerConfig(kv_cache_dtype="fp8", kernels="torch", attention_backend="triton"))


def test_weights_of_8_bit_floats_go_with_every_option_that_torch_has() -> None:
    options = {"kernels": "torch", "attention_backend": "triton", "kv_cache_dtype": "fp8", "tensor_parallel_size": 2}
    check_options(RunnerConfig(quantization="fp8", **options))  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        check_options(RunnerConfig(quantization="fp8", kernels="native"))
    assert caught.value.message == (
        "quantization 'fp8' is for torch's kernels and Chairlift's own architectures, not for kernels 'native'; leave "
        "kernels out, or choose another quantization"
    )


def test_transformers_modules_are_not_quantized_to_8_bit_floats() -> None:
    for quantization in ("none", "int8"):
        refuse_float8(RunnerConfig(quantization=quantization), "MixtralForCausalLM")
    with pytest.raises(ConfigError, match="'fp8': MixtralForCausalLM is computed by transformers' modules") as caught:
        refuse_float8(RunnerConfig(quantization="fp8"), "MixtralForCausalLM")
    assert caught.value.details["option"] == "quantization"
