"""SMOLLM3: Llama's layers, of which every fourth does not rotate. Source: transformers 5.23 models/smollm3."""

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture
from chairlift.model.config.architectures.decoder_fields import (
    LLAMA_DEFAULTS,
    LLAMA_GGUF_LAYER,
    decoder_config,
    full_attention,
    layer_windows,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    unrotated = _unrotated_layers(fields)
    has_windows = fields.flag("use_sliding_window") and fields.size_or_none("sliding_window") is not None
    windows = layer_windows(fields, lambda layer: layer in unrotated) if has_windows else full_attention(fields)
    bias = fields.flag("attention_bias")
    return decoder_config(
        architecture, fields, windows, unrotated_layers=unrotated, qkv_bias=bias, output_bias=bias,
        mlp_bias=fields.flag("mlp_bias"),
    )  # fmt: skip


def _unrotated_layers(fields: ConfigReader) -> tuple[int, ...]:
    """Return the layers whose entry in no_rope_layers is 0, or else every n-th one."""
    layers, rotates = fields.size("num_hidden_layers"), fields.flags("no_rope_layers")
    if rotates is None:
        period = fields.size("no_rope_layer_interval")
        return tuple(layer for layer in range(layers) if (layer + 1) % period == 0)
    if len(rotates) < layers:
        raise ModelError(f"config.json: no_rope_layers has {len(rotates)} entries, num_hidden_layers is {layers}")
    return tuple(layer for layer, rotated in enumerate(rotates[:layers]) if not rotated)


SMOLLM3 = Architecture(
    names=("SmolLM3ForCausalLM",),
    models="SmolLM3",
    defaults={
        **LLAMA_DEFAULTS, "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
        "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "eos_token_id": 128001, "bos_token_id": 128000, "rope_theta": 2000000.0, "tie_word_embeddings": True,
        "use_sliding_window": False, "sliding_window": None, "no_rope_layer_interval": 4,
    },
    read_config=_read_config,
    gguf=GGUFArchitecture(
        name="smollm3", architecture="SmolLM3ForCausalLM", model_type="smollm3", layer_names=LLAMA_GGUF_LAYER,
        has_paired_rows=True,
        fields={
            "hidden_act": "silu", "no_rope_layer_interval": 4, "use_sliding_window": False, "pad_token_id": None,
        },
    ),
)  # fmt: skip
