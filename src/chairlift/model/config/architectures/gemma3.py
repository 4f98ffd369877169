"""GEMMA3: Gemma 3, and the text part of its multimodal wrapper: sliding and full layers, each with its own rotation.

Norms come before and after attention and MLP, embeddings are scaled by sqrt(hidden_size). Source: transformers 5.23
models/gemma3.
"""

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture
from chairlift.model.config.architectures.decoder_fields import FULL, SLIDING, decoder_config, windows_of_kinds
from chairlift.model.config.architectures.qwen3 import QWEN3_GGUF_LAYER
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import HEAD, DecoderConfig, LayerNorms
from chairlift.model.config.rope_config import read_ropes

GEMMA_NORMS = LayerNorms(
    before_attention="input_layernorm", after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm", after_mlp="post_feedforward_layernorm",
)  # fmt: skip

GEMMA_GGUF_LAYER = {
    **QWEN3_GGUF_LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    """Read the config. attn_logit_softcapping is ignored, as transformers' Gemma 3 never applies it."""
    full, sliding = read_ropes(fields, fields.size("max_position_embeddings"), by_layer_type=True)
    bias = fields.flag("attention_bias")
    windows = _windows(fields)
    if fields.flag_or("use_bidirectional_attention", False):
        raise ModelError("config.json: use_bidirectional_attention is not supported; only causal attention is")
    return decoder_config(
        architecture, fields, windows, rope=full, sliding_rope=sliding, qkv_bias=bias, output_bias=bias,
        head_norm=HEAD, norms=GEMMA_NORMS, norm_offset=1.0, embed_scale=fields.size("hidden_size") ** 0.5,
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        final_softcap=fields.number_or_none("final_logit_softcapping"),
    )  # fmt: skip


def _windows(fields: ConfigReader) -> tuple[int | None, ...]:
    layers, window = fields.size("num_hidden_layers"), fields.size_or_none("sliding_window")
    kinds = fields.names("layer_types")
    if kinds is None:
        own = "_sliding_window_pattern"
        pattern = fields.size(own if own in fields else "sliding_window_pattern")
        kinds = tuple(SLIDING if (layer + 1) % pattern else FULL for layer in range(layers))
    return windows_of_kinds(kinds, window, layers)


GEMMA3 = Architecture(
    names=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    models="Gemma 3, the text part",
    defaults={
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "eos_token_id": 1, "bos_token_id": 2, "attention_bias": False,
        "sliding_window": 4096, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256,
        "final_logit_softcapping": None, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
    },
    read_config=_read_config,
    ignored_prefixes=(
        "vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
    ),
    gguf=GGUFArchitecture(
        name="gemma3", architecture="Gemma3ForCausalLM", model_type="gemma3_text", layer_names=GEMMA_GGUF_LAYER,
        norm_offset=1.0, full_layer_period=6, has_query_scalar=True, exceeds_float16=True,
        fields={"hidden_activation": "gelu_pytorch_tanh"},
    ),
)  # fmt: skip
