"""GEMMA2: sliding and full layers by turns, norms before and after attention and MLP, caps on attention and logits.

Source: transformers 5.23 models/gemma2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture, GGUFContents
from chairlift.model.config.architectures.decoder_fields import LLAMA_GGUF_LAYER, decoder_config, layer_windows
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig, LayerNorms

GEMMA_NORMS = LayerNorms(
    before_attention="input_layernorm", after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm", after_mlp="post_feedforward_layernorm",
)  # fmt: skip


def gemma_config(
    architecture: str, fields: ConfigReader, windows: Sequence[int | None], **own: Any
) -> DecoderConfig:  # fmt: skip
    """Read the config of a Gemma; arguments as in decoder_config."""
    bias = fields.flag("attention_bias")
    if fields.flag_or("use_bidirectional_attention", False):
        raise ModelError("config.json: use_bidirectional_attention is not supported; only causal attention is")
    return decoder_config(
        architecture, fields, windows, qkv_bias=bias, output_bias=bias, norms=GEMMA_NORMS, norm_offset=1.0,
        embed_scale=fields.size("hidden_size") ** 0.5,
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5, **own,
    )  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    return gemma_config(
        architecture, fields, layer_windows(fields, lambda layer: layer % 2 == 0),
        attention_softcap=fields.number_or_null("attn_logit_softcapping"),
        final_softcap=fields.number_or_null("final_logit_softcapping"),
    )  # fmt: skip


GEMMA_GGUF_LAYER = {
    **LLAMA_GGUF_LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    """Return the caps, which have Gemma 2's values in a file without them."""
    return {
        "attn_logit_softcapping": contents.read.number_or("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": contents.read.number_or("final_logit_softcapping", 30.0),
    }


GEMMA2 = Architecture(
    names=("Gemma2ForCausalLM",),
    models="Gemma 2",
    defaults={
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "eos_token_id": 1,
        "bos_token_id": 2, "attention_bias": False, "sliding_window": 4096, "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rope_theta": 10000.0,
    },
    read_config=_read_config,
    gguf=GGUFArchitecture(
        name="gemma2", architecture="Gemma2ForCausalLM", model_type="gemma2", layer_names=GEMMA_GGUF_LAYER,
        norm_offset=1.0, full_layer_period=2, has_query_scalar=True, query_scalar_layers=46, exceeds_float16=True,
        read_fields=_read_gguf, fields={"hidden_activation": "gelu_pytorch_tanh"},
    ),
)  # fmt: skip
