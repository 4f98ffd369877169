"""QWEN3: Llama's layers with a norm over each query and key head. Source: transformers 5.23 models/qwen3."""

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture
from chairlift.model.config.architectures.decoder_fields import GGUF_HEAD_NORMS, LLAMA_GGUF_LAYER, decoder_config
from chairlift.model.config.architectures.qwen2 import NO_WINDOW, QWEN2_DEFAULTS, qwen_windows
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import HEAD, DecoderConfig

QWEN3_GGUF_LAYER = {**LLAMA_GGUF_LAYER, **GGUF_HEAD_NORMS}


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    return decoder_config(architecture, fields, qwen_windows(fields), qkv_bias=bias, output_bias=bias, head_norm=HEAD)


QWEN3 = Architecture(
    names=("Qwen3ForCausalLM",),
    models="Qwen3",
    defaults={**QWEN2_DEFAULTS, "head_dim": 128},
    read_config=_read_config,
    gguf=GGUFArchitecture(
        name="qwen3", architecture="Qwen3ForCausalLM", model_type="qwen3", layer_names=QWEN3_GGUF_LAYER,
        fields={"hidden_act": "silu", **NO_WINDOW},
    ),
)  # fmt: skip
