"""model_facts: number and memory of the parameters, by dtype and quantization."""

from dataclasses import replace

import pytest

from chairlift import demo
from chairlift.core.model_facts import ModelFacts
from chairlift.model.loading.decoder_config import DecoderConfig
from chairlift.model.loading.model_impl import read_config
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
])  # fmt: skip
def test_the_memory_of_the_weights(dtype: str, quantization: str, expected: int) -> None:
    assert weight_bytes(800, dtype, quantization) == expected
