"""OLMO2: norms after attention and MLP only, and norms over all queries and all keys of a token.

Source: transformers 5.23 models/olmo2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture, GGUFContents
from chairlift.model.config.architectures.decoder_fields import (
    GGUF_HEAD_NORMS,
    LLAMA_DEFAULTS,
    LLAMA_GGUF_LAYER,
    decoder_config,
    full_attention,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import PROJECTION, DecoderConfig, LayerNorms

OLMO_DEFAULTS = {
    **LLAMA_DEFAULTS, "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "rms_norm_eps": 1e-5, "eos_token_id": 50279, "bos_token_id": None,
}  # fmt: skip

OLMO_NORMS = LayerNorms(
    before_attention=None, after_attention="post_attention_layernorm",
    before_mlp=None, after_mlp="post_feedforward_layernorm",
)  # fmt: skip


def olmo_config(
    architecture: str, fields: ConfigReader, windows: Sequence[int | None], **own: Any
) -> DecoderConfig:  # fmt: skip
    """Read the config of an OLMo; arguments as in decoder_config."""
    bias = fields.flag("attention_bias")
    return decoder_config(
        architecture, fields, windows, qkv_bias=bias, output_bias=bias, norms=OLMO_NORMS, norm_in_float32=True,
        head_norm=PROJECTION, **own,
    )  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    return olmo_config(architecture, fields, full_attention(fields))


_GGUF_LAYER = {
    **{module: name for module, name in LLAMA_GGUF_LAYER.items() if module != "input_layernorm"},
    **GGUF_HEAD_NORMS,
    "post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    """Return the class of a file with windows, which is OLMo 3's."""
    has_windows = contents.fields["sliding_window"] is not None
    return {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"} if has_windows else {}


OLMO2 = Architecture(
    names=("Olmo2ForCausalLM",),
    models="OLMo 2",
    defaults=OLMO_DEFAULTS,
    read_config=_read_config,
    gguf=GGUFArchitecture(
        name="olmo2", architecture="Olmo2ForCausalLM", model_type="olmo2", layer_names=_GGUF_LAYER,
        full_layer_period=4, window_rope_base=0.0, read_fields=_read_gguf, fields={"hidden_act": "silu"},
    ),
)  # fmt: skip
"""GGUF files of OLMo 3 are `olmo2`, too."""
