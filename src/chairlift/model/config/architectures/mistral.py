"""MISTRAL: Llama's layers with a sliding window in all of them or in none. Source: transformers 5.23 models/mistral."""

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.architecture import Architecture
from chairlift.model.config.architectures.decoder_fields import FULL, LLAMA_DEFAULTS, SLIDING, decoder_config
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    layers, window = fields.size("num_hidden_layers"), fields.size_or_none("sliding_window")
    kinds = fields.names("layer_types")
    # transformers' Mistral has a window in all layers or in none, whatever layer_types contains.
    kind = FULL if window is None else SLIDING
    if kinds is not None and set(kinds) != {kind}:
        raise ModelError(f"config.json: layer_types {sorted(set(kinds))} contradict sliding_window {window}")
    return decoder_config(architecture, fields, (window,) * layers)


MISTRAL = Architecture(
    names=("MistralForCausalLM",),
    models="Mistral 7B",
    defaults={**LLAMA_DEFAULTS, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    read_config=_read_config,
)
