"""model_facts: number and memory of the parameters, by dtype and quantization."""

from dataclasses import replace

import pytest

from chairlift import demo
from chairlift.core.model_facts import ModelFacts
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.select_model_config import read_config
from chairlift.model.runner.model_facts import model_facts, weight_bytes


def test_the_demo_model() -> None:
    config = read_config(demo.FOLDER)
    assert isinstance(config, DecoderConfig)
    facts = model_facts(replace(config, dtype="bfloat16"), "none")
    assert facts == ModelFacts(
        architecture="LlamaForCausalLM", dtype="bfloat16", num_parameters=demo.parameters(),
        weight_bytes=2 * demo.parameters(),
    )  # fmt: skip
    assert model_facts(replace(config, dtype="bfloat16"), "int8").quantization == "int8"


@pytest.mark.parametrize(("dtype", "quantization", "expected"), [
    ("float32", "none", 3200), ("bfloat16", "none", 1600), ("bfloat16", "int8", 850), ("bfloat16", "int8-channel", 800),
    ("bfloat16", "int4", 650),
])  # fmt: skip
def test_the_memory_of_the_weights(dtype: str, quantization: str, expected: int) -> None:
    assert weight_bytes({"a": (20, 30), "b": (200,)}, dtype, quantization) == expected


def test_the_memory_of_4_bits_is_that_of_layers_and_6_bits_elsewhere() -> None:
    shapes = {"model.layers.0.mlp.up_proj.weight": (64, 32), "lm_head.weight": (10, 32)}
    assert weight_bytes(shapes, "bfloat16", "int4") == 64 * 20 + 10 * 26


@pytest.mark.parametrize(("quantization", "head"), [("int8", 34), ("int8-channel", 32), ("int4", 26), ("none", 64)])
def test_an_embedding_table_that_is_no_lm_head_stays_in_the_dtype(quantization: str, head: int) -> None:
    shapes = {"model.embed_tokens.weight": (10, 32), "lm_head.weight": (10, 32)}
    assert weight_bytes(shapes, "bfloat16", quantization) == 10 * 64 + 10 * head
    del shapes["lm_head.weight"]
    assert weight_bytes(shapes, "bfloat16", quantization) == 10 * head


def test_the_memory_of_8_bit_floats_is_that_of_layers_whose_sizes_fit_and_of_their_scales() -> None:
    shapes = {"model.layers.0.mlp.up_proj.weight": (32, 64), "model.layers.0.mlp.down_proj.weight": (64, 33),
              "model.layers.0.input_layernorm.weight": (64,), "lm_head.weight": (160, 64)}  # fmt: skip
    assert weight_bytes(shapes, "bfloat16", "fp8") == 32 * 64 + 4 * 32 + 2 * (64 * 33 + 64 + 160 * 64)


def test_fp8_is_in_the_facts() -> None:
    config = read_config(demo.FOLDER)
    facts, plain = (model_facts(replace(config, dtype="bfloat16"), each) for each in ("fp8", "none"))
    assert facts.quantization == "fp8" and facts.num_parameters == plain.num_parameters
    assert 0.5 < facts.weight_bytes / plain.weight_bytes < 0.75


@pytest.mark.parametrize(("quantization", "row"), [("int8", 34), ("int4", 26), ("none", 64)])
def test_a_table_of_inputs_of_layers_has_the_bytes_of_a_tied_one(quantization: str, row: int) -> None:
    shapes = {"model.embed_tokens_per_layer.weight": (10, 32), "model.embed_tokens.weight": (10, 32)}
    assert weight_bytes(shapes, "bfloat16", quantization) == 20 * row
    untied = {**shapes, "lm_head.weight": (10, 32)}
    assert weight_bytes(untied, "bfloat16", quantization) == 20 * row + 10 * 64
