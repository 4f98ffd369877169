"""ModelMemory: bytes of weights and KV cache against the project's own sizes; splits over devices."""

import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from chairlift.bench.planning.model_memory import ModelMemory, stage_layers
from chairlift.bench.planning.model_shape import shape_of_content, shape_of_loaded
from chairlift.model.batch.kv_cache_shape import full_length_blocks, kv_cache_shape
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.loading.model_building import parameter_shapes
from chairlift.model.runner.model_facts import weight_bytes
from support_architectures import config_of
from support_attention_shapes import SHAPES, attention_config
from support_planning import TINY, loaded_config, published_shape
from support_shares import for_each

MODELS = ("Llama-3.2-1B", "Qwen2.5-7B", "Qwen3-8B", "Mistral-7B-v0.1", "gemma-3-4b-it")


def memory(name: str, **options: Any) -> ModelMemory:
    return ModelMemory(shape=published_shape(name), **{"dtype": "bfloat16", **options})


@for_each("name", MODELS)
@for_each(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_weights_are_the_bytes_of_the_tensors(name: str, dtype: str, size: int) -> None:
    tensors = sum(math.prod(shape) for shape in parameter_shapes(loaded_config(name)).values())
    assert memory(name, dtype=dtype).weights == size * tensors


@for_each("name", [name for name in MODELS if not name.startswith("gemma")])
@for_each("length", [2, 640, 9000])
@for_each("cache", ["auto", "fp8"])
def test_the_kv_cache_of_a_request_is_that_of_the_engine(name: str, length: int, cache: str) -> None:
    config = loaded_config(name)
    groups = config.layer_groups
    pool = kv_cache_shape(RunnerConfig(kv_cache_dtype=cache), config, groups, length)
    needed = full_length_blocks(pool, groups.windows) * pool.page_bytes
    found = memory(name, kv_cache_dtype=cache)
    assert found.kv_of_request(length) == needed
    assert found.kv_per_token * pool.block_size == pool.page_bytes * pool.groups


@for_each("length", [2, 640, 9000])
def test_the_kv_cache_of_layers_of_several_shapes_is_that_of_the_engine_where_pages_are_full(length: int) -> None:
    config = attention_config(**SHAPES["equal widths"])
    pool = kv_cache_shape(RunnerConfig(), config, config.layer_groups, length)
    found = ModelMemory(shape=shape_of_loaded(asdict(config), {}), dtype="float32")
    assert found.kv_of_request(length) == full_length_blocks(pool, config.layer_groups.windows) * pool.page_bytes
    assert found.kv_per_token * pool.block_size == pool.page_bytes * pool.groups


@for_each("shapes", SHAPES)
def test_parameters_of_layers_of_several_shapes_are_those_of_the_tensors(shapes: str) -> None:
    config = attention_config(**SHAPES[shapes])
    found = shape_of_loaded(asdict(config), {})
    assert found.parameters == sum(math.prod(shape) for shape in parameter_shapes(config).values())


@for_each("kind", ["gemma4", "gemma4_dense", "gemma4_moe"])
def test_weights_of_gemma_4_are_those_of_the_tensors(kind: str) -> None:
    config = config_of(kind)
    found = ModelMemory(shape=shape_of_loaded(asdict(config), {}), dtype="float32")
    assert found.weights == 4 * sum(math.prod(shape) for shape in parameter_shapes(config).values())


def test_windows_bound_the_kv_cache() -> None:
    gemma = memory("gemma-3-4b-it")
    assert gemma.kv_of_request(100_000) < 0.25 * gemma.kv_per_token * 100_000
    assert memory("Mistral-7B-v0.1").kv_of_request(20_000) == memory("Mistral-7B-v0.1").kv_of_request(5000)


def test_splits_share_weights_and_cache() -> None:
    whole = memory("llama-70b")
    assert whole.stage_weights(4, 1) == pytest.approx(whole.weights / 4, rel=1e-4)
    assert whole.weights / 4 < whole.stage_weights(1, 4) < whole.weights / 4 * 1.05
    assert whole.kv_of_request(4096, tensor=8) * 8 == whole.kv_of_request(4096)
    assert whole.kv_of_request(4096, tensor=16) == whole.kv_of_request(4096, tensor=8), "8 heads can only be copied"
    assert whole.kv_of_request(4096, pipeline=4, context=2) * 8 == whole.kv_of_request(4096)
    assert whole.step_bytes(8) < whole.step_bytes()


def test_stages_have_all_layers_and_differ_by_one() -> None:
    spans = stage_layers(61, 8)
    assert [layer for span in spans for layer in span] == list(range(61))
    assert {len(span) for span in spans} == {7, 8}


def test_both_ends_of_a_tied_pipeline_have_the_table() -> None:
    tied = memory("Qwen3-0.6B")
    layers = tied.weights - 2 * tied.shape.table
    assert tied.stage_weights(1, 2) == pytest.approx(layers / 2 + 2 * tied.shape.table, rel=1e-3)


@pytest.mark.parametrize(("left_out", "is_plain"), [
    ({"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}, True),
    ({"ignore": ["re:.*self_attn.*", "lm_head"]}, True),
    ({"modules_to_not_convert": ["model.layers.0.self_attn"]}, False),
    ({"modules_to_not_convert": ["lm_head"]}, False), ({"modules_to_not_convert": None}, False),
])  # fmt: skip
def test_attention_that_a_checkpoint_does_not_quantize(left_out: dict[str, Any], is_plain: bool) -> None:
    config = {**TINY, "model_type": "llama", "quantization_config": {"quant_method": "fp8", **left_out}}
    shape = shape_of_content(config)
    quantized = ModelMemory(shape=shape, dtype="bfloat16")
    attention = sum(shape.mixer_matrices)
    rest = 2 * (shape.parameters - shape.matrices)
    assert quantized.weights == math.ceil(rest + shape.matrices + attention * is_plain)
    assert ModelMemory(shape=shape, dtype="bfloat16", quantization="int8-channel").attention_bytes == 1


def test_own_quantization_keeps_an_embedding_table_that_is_no_lm_head() -> None:
    shape = published_shape("Qwen3-8B")
    int8 = memory("Qwen3-8B", quantization="int8-channel")
    assert int8.weights == 2 * (shape.table + shape.vectors) + shape.head + shape.matrices
    tied = memory("Qwen3-0.6B", quantization="int8-channel")
    assert tied.weights == tied.shape.table + tied.shape.matrices + 2 * tied.shape.vectors


@pytest.mark.parametrize("name", MODELS)
def test_fp8_weights_are_the_bytes_that_the_engine_counts(name: str) -> None:
    engine = weight_bytes(parameter_shapes(loaded_config(name)), "bfloat16", "fp8")
    found, plain = memory(name, quantization="fp8"), memory(name)
    assert found.weights == pytest.approx(engine, rel=1e-3) and found.is_quantized
    assert plain.weights - found.weights == pytest.approx(plain.shape.matrices, rel=1e-2), "half of the layers' bytes"
    assert (found.head_bytes, found.table_bytes) == (2, 2), "lm_head and embedding table stay as they are"


@pytest.mark.parametrize("name", ["Qwen3-8B", "gemma-3-4b-it"])
def test_an_fp8_cache_has_half_the_bytes(name: str) -> None:
    plain, float8 = memory(name), memory(name, kv_cache_dtype="fp8")
    assert plain.kv_per_token == 2 * float8.kv_per_token and plain.kv_of_request(999) == 2 * float8.kv_of_request(999)
    assert float8.weights == plain.weights and not float8.is_quantized
    assert memory(name, kv_cache_dtype="fp8", quantization="fp8").kv_per_token == float8.kv_per_token


def test_float16_on_a_cpu_has_a_cache_and_activations_of_float32() -> None:
    on_gpu, on_cpu, float32 = (
        memory("Qwen3-0.6B", **options)
        for options in (
            {"dtype": "float16"},
            {"dtype": "float16", "on_cpu": True},
            {"dtype": "float32", "on_cpu": True},
        )
    )
    assert on_cpu.weights == on_gpu.weights == float32.weights / 2
    assert on_cpu.kv_per_token == float32.kv_per_token == 2 * on_gpu.kv_per_token
    assert on_cpu.step_bytes() == float32.step_bytes() > on_gpu.step_bytes()
    for options in ({"kv_cache_dtype": "fp8"}, {"quantization": "fp8"}):
        assert memory("Qwen3-0.6B", dtype="float16", on_cpu=True, **options).computed_itemsize == 2


def test_a_gguf_file_keeps_its_bits_on_a_cpu_and_is_dequantized_for_a_gpu() -> None:
    entry = {"quant_method": "gguf", "bits": 4.5, "table_bits": 6.5, "head_bits": 8.5}
    shape = shape_of_content({**TINY, "model_type": "llama", "quantization_config": entry})
    kept = ModelMemory(shape=shape, dtype="bfloat16", on_cpu=True)
    assert (kept.matrix_bytes, kept.table_bytes, kept.head_bytes) == (4.5 / 8, 6.5 / 8, 8.5 / 8)
    for other in (replace(kept, on_cpu=False), replace(kept, quantization="none")):
        assert other.matrix_bytes == other.table_bytes == other.head_bytes == 2
    assert replace(kept, quantization="int8").matrix_bytes == 1 + 2 / 32
    int4 = replace(kept, quantization="int4")
    assert (int4.matrix_bytes, int4.head_bytes) == (5 / 8, 6.5 / 8)
