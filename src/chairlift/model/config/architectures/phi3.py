"""PHI3: Phi-3, Phi-4 and Phi-4-mini: Llama's layers with joined projections, and longrope on a part of each head.

Source: transformers 5.23 models/phi3.
"""

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture
from chairlift.model.config.architectures.decoder_fields import (
    LLAMA_DEFAULTS,
    LLAMA_GGUF_ATTENTION,
    decoder_config,
    joined_source,
    read_head_dim,
    same_window,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.rope_config import LONG_ROPE_TYPES, lacking_feature, read_ropes


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    positions = fields.size("max_position_embeddings")
    # transformers takes "su" and "yarn" in old files for what is now "longrope".
    long_types = (*LONG_ROPE_TYPES, "yarn")
    rope, _ = read_ropes(
        fields, positions, by_layer_type=False, head_dim=read_head_dim(fields), long_types=long_types
    )  # fmt: skip
    if rope.type not in ("default", "longrope"):
        raise lacking_feature(f"rope_type {rope.type!r} is not supported in this architecture")
    return decoder_config(architecture, fields, same_window(fields), rope=rope, sliding_rope=rope)


PHI3 = Architecture(
    names=("Phi3ForCausalLM",),
    models="Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
    defaults={
        **LLAMA_DEFAULTS, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "eos_token_id": 32000, "sliding_window": None,
    },
    read_config=_read_config,
    source=joined_source,
    gguf=GGUFArchitecture(
        name="phi3", architecture="Phi3ForCausalLM", model_type="phi3",
        layer_names={
            **LLAMA_GGUF_ATTENTION, "self_attn.qkv_proj": "attn_qkv", "post_attention_layernorm": "ffn_norm",
            "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        },
        has_window=True, has_partial_rotation=True, has_long_rope=True, exceeds_float16=True,
        fields={"hidden_act": "silu", "pad_token_id": None},
    ),
)  # fmt: skip
