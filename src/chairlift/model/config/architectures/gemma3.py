"""GEMMA3: Gemma 3, and the text part of its multimodal wrapper: sliding and full layers, each with its own rotation.

Norms come before and after attention and MLP, embeddings are scaled by sqrt(hidden_size). Source: transformers 5.23
models/gemma3.
"""

from chairlift.model.config.architectures.architecture import TEXT_WRAPPER_PREFIXES, Architecture, GGUFArchitecture
from chairlift.model.config.architectures.decoder_fields import GGUF_HEAD_NORMS, layer_windows
from chairlift.model.config.architectures.gemma2 import GEMMA_GGUF_LAYER, gemma_config
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import HEAD, DecoderConfig
from chairlift.model.config.rope_config import read_ropes

GEMMA3_GGUF_LAYER = {**GEMMA_GGUF_LAYER, **GGUF_HEAD_NORMS}


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    """Read the config. attn_logit_softcapping is ignored, as transformers' Gemma 3 never applies it."""
    full, sliding = read_ropes(fields, fields.size("max_position_embeddings"), by_layer_type=True)
    own = "_sliding_window_pattern"
    pattern = own if own in fields else "sliding_window_pattern"
    return gemma_config(
        architecture, fields, layer_windows(fields, lambda layer: (layer + 1) % fields.size(pattern) != 0),
        rope=full, sliding_rope=sliding, head_norm=HEAD,
        final_softcap=fields.number_or_none("final_logit_softcapping"),
    )  # fmt: skip


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
    ignored_prefixes=TEXT_WRAPPER_PREFIXES,
    gguf=GGUFArchitecture(
        name="gemma3", architecture="Gemma3ForCausalLM", model_type="gemma3_text", layer_names=GEMMA3_GGUF_LAYER,
        norm_offset=1.0, full_layer_period=6, window_rope_base=10000.0, has_query_scalar=True, query_scalar_layers=62,
        exceeds_float16=True,
        fields={"hidden_activation": "gelu_pytorch_tanh"},
    ),
)  # fmt: skip
