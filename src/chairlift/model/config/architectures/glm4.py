"""GLM4: norms before and after attention and MLP, joined gate and up, and pairs of neighbours in half of a head rotate.

Source: transformers 5.23 models/glm4.
"""

from collections.abc import Mapping
from typing import Any

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture, GGUFContents, TensorSource
from chairlift.model.config.architectures.decoder_fields import (
    LLAMA_DEFAULTS,
    LLAMA_GGUF_ATTENTION,
    decoder_config,
    full_attention,
    joined_source,
    read_head_dim,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig, LayerNorms
from chairlift.model.config.rope_config import read_ropes

_ENDS = (151329, 151336, 151338)

_NORMS = LayerNorms(
    before_attention="input_layernorm", after_attention="post_self_attn_layernorm",
    before_mlp="post_attention_layernorm", after_mlp="post_mlp_layernorm",
)  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    positions = fields.size("max_position_embeddings")
    rope, _ = read_ropes(
        fields, positions, by_layer_type=False, head_dim=read_head_dim(fields), is_interleaved=True
    )  # fmt: skip
    return decoder_config(
        architecture, fields, full_attention(fields), rope=rope, sliding_rope=rope, norms=_NORMS,
        qkv_bias=fields.flag("attention_bias"), eos_token_ids=fields.token_ids("eos_token_id") or _ENDS,
    )  # fmt: skip


def _source(config: DecoderConfig, name: str) -> TensorSource | None:
    return joined_source(config, name) if ".mlp." in name else None


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    if contents.read.is_list("rope.dimension_sections"):
        raise contents.read.unsupported("rope.dimension_sections", "is that of a model with images")
    return {}


GLM4 = Architecture(
    names=("Glm4ForCausalLM",),
    models="GLM-4 (0414)",
    defaults={
        **LLAMA_DEFAULTS, "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 131072, "rms_norm_eps": 0.00000015625, "attention_bias": True,
        "partial_rotary_factor": 0.5, "eos_token_id": None, "bos_token_id": None,
    },
    read_config=_read_config,
    source=_source,
    gguf=GGUFArchitecture(
        name="glm4", architecture="Glm4ForCausalLM", model_type="glm4",
        layer_names={
            **LLAMA_GGUF_ATTENTION, "post_self_attn_layernorm": "post_attention_norm",
            "post_attention_layernorm": "ffn_norm", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
            "post_mlp_layernorm": "post_ffw_norm",
        },
        has_output_bias=False, has_partial_rotation=True, read_fields=_read_gguf,
        fields={"hidden_act": "silu", "pad_token_id": None},
    ),
)  # fmt: skip
