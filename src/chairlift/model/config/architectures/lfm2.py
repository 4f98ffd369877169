"""LFM2: most layers are gated short convolutions, the others attention with a norm over each head.

Source: transformers 5.23 models/lfm2.
"""

from collections.abc import Mapping
from typing import Any

from chairlift.core.numeric_limits import MAX_INT32
from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture, GGUFContents, TensorSource
from chairlift.model.config.architectures.decoder_fields import FULL, LLAMA_DEFAULTS, check_state_kinds, decoder_config
from chairlift.model.config.config_reader import ConfigReader, invalid_field
from chairlift.model.config.decoder_config import HEAD, DecoderConfig, LayerNorms
from chairlift.model.config.state_layers import ShortConvConfig

CONVOLUTION = "conv"
"""Entry of layer_types of a layer that keeps a state."""

LFM2_NAMES = {
    "self_attn.o_proj": "self_attn.out_proj", "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}  # fmt: skip
"""Module of a layer -> its name in the checkpoint."""

LFM2_NORMS = LayerNorms(before_attention="operator_norm", before_mlp="ffn_norm")


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    layers, kinds = fields.size("num_hidden_layers"), fields.names("layer_types")
    if kinds is None:
        full = fields.indices("full_attn_idxs", layers)
        kinds = tuple(FULL if full is None or layer in full else CONVOLUTION for layer in range(layers))
    check_state_kinds(kinds, CONVOLUTION, layers)
    state = ShortConvConfig(
        hidden_size=fields.size("hidden_size"), conv_width=fields.size("conv_L_cache"), bias=fields.flag("conv_bias")
    )
    return decoder_config(
        architecture, fields, (None,) * kinds.count(FULL), norm_eps=fields.number("norm_eps"), head_norm=HEAD,
        norms=LFM2_NORMS, state_layers=tuple(state if kind == CONVOLUTION else None for kind in kinds),
        intermediate_size=_intermediate_size(fields),
        tie_word_embeddings=fields.flag_or("tie_embedding", fields.flag("tie_word_embeddings")),
    )  # fmt: skip


def _intermediate_size(fields: ConfigReader) -> int:
    """Return the neurons of the MLP: two thirds of what the field says, rounded up to a multiple."""
    size = fields.size_or("block_ff_dim", fields.size("intermediate_size"))
    if not fields.flag("block_auto_adjust_ff_dim"):
        return size
    size = int(2 * size / 3)
    if (factor := fields.number_or_null("block_ffn_dim_multiplier")) is None:
        return size
    multiple = fields.size("block_multiple_of")
    scaled = factor * size
    if not 1 <= scaled <= MAX_INT32:
        raise invalid_field("block_ffn_dim_multiplier", f"makes an MLP of {scaled:g} neurons")
    return -(-int(scaled) // multiple) * multiple


def _source(config: DecoderConfig, name: str) -> TensorSource | None:
    if name == "model.norm.weight":
        return TensorSource("model.embedding_norm.weight")
    module, _, kind = name.rpartition(".")
    own = next((each for each in LFM2_NAMES if module.endswith(f".{each}")), None)
    return None if own is None else TensorSource(f"{module.removesuffix(own)}{LFM2_NAMES[own]}.{kind}")


_GGUF_LAYER = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
}  # fmt: skip


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    read, fields = contents.read, contents.fields
    kv_heads = read.layer_counts("attention.head_count_kv", fields["num_hidden_layers"])
    width = read.size("shortconv.l_cache")
    contents.check_shape("shortconv.l_cache", "shortconv.conv", fields["hidden_size"], width)
    return {
        "layer_types": [FULL if count else CONVOLUTION for count in kv_heads],
        "norm_eps": fields["rms_norm_eps"], "conv_L_cache": width,
    }  # fmt: skip


LFM2 = Architecture(
    names=("Lfm2ForCausalLM",),
    models="LFM2, LFM2.5; layers that keep a state",
    defaults={
        **LLAMA_DEFAULTS, "vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5,
        "tie_word_embeddings": True, "conv_bias": False, "conv_L_cache": 3, "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True, "rope_theta": 1000000.0,
    },
    read_config=_read_config,
    source=_source,
    gguf=GGUFArchitecture(
        name="lfm2", architecture="Lfm2ForCausalLM", model_type="lfm2", layer_names=_GGUF_LAYER,
        model_names={"model.embedding_norm.weight": "token_embd_norm.weight"}, state_kind=CONVOLUTION,
        read_fields=_read_gguf, fields={"conv_bias": False, "block_auto_adjust_ff_dim": False},
    ),
)  # fmt: skip
