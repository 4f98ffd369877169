"""Llama, Mistral, Qwen2: the parameters that each loads, against transformers' modules."""

import json

import torch
import transformers

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.loading.model_building import parameter_shapes
from support_models import VARIANTS, tiny_config
from support_shares import for_each


@for_each("kind", [kind for kind in VARIANTS if kind.startswith(("llama", "mistral", "qwen2"))])
def test_parameters_are_those_of_transformers(kind: str) -> None:
    architecture = VARIANTS[kind][1]
    config = tiny_config(kind, architectures=[architecture])
    with torch.device("meta"):
        model = getattr(transformers, architecture)(config)
    theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert parameter_shapes(parse_decoder_config(json.loads(config.to_json_string()))) == theirs


def test_biases_are_taken_where_the_config_has_them() -> None:
    config = tiny_config("llama-bias", architectures=["LlamaForCausalLM"])
    names = parameter_shapes(parse_decoder_config(json.loads(config.to_json_string())))
    assert {name.rsplit(".", 2)[-2] for name in names if name.endswith(".bias")} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
