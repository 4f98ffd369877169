"""Qwen3: Llama's parameters and a norm for query and key heads."""

import json

import torch
import transformers

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.loading.model_building import parameter_shapes
from support_models import tiny_config


def test_parameters_are_those_of_transformers() -> None:
    config = tiny_config("qwen3", architectures=["Qwen3ForCausalLM"], attention_bias=True)
    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(config)
    theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    ours = parameter_shapes(parse_decoder_config(json.loads(config.to_json_string())))
    assert ours == theirs
    assert ours["model.layers.0.self_attn.q_norm.weight"] == (32,)
