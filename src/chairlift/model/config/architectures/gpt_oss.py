"""GPT_OSS: experts with biases, a window in every second layer, and a sink for each query head.

Source: transformers 5.23 models/gpt_oss.
"""

from chairlift.model.config.architectures.architecture import Architecture
from chairlift.model.config.architectures.decoder_fields import LLAMA_DEFAULTS, decoder_config, layer_windows
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.experts_config import EXPERT_DEFAULTS, read_experts


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    return decoder_config(
        architecture, fields, layer_windows(fields, lambda layer: layer % 2 == 0), qkv_bias=bias, output_bias=bias,
        norm_in_float32=True, has_sinks=True, experts=read_experts(architecture, fields),
    )  # fmt: skip


GPT_OSS = Architecture(
    names=("GptOssForCausalLM",),
    models="gpt-oss, also with MXFP4 experts",
    defaults={
        **LLAMA_DEFAULTS, **EXPERT_DEFAULTS["GptOssForCausalLM"], "vocab_size": 201088, "hidden_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": 128, "attention_bias": True,
        "eos_token_id": None, "bos_token_id": None, "rope_theta": 150000.0,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4096,
        },
    },
    read_config=_read_config,
)  # fmt: skip
