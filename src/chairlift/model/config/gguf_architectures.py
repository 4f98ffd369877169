"""GGUFArchitecture, GGUF_ARCHITECTURES: what differs between the architectures of GGUF files. Imports no torch.

A later architecture is one entry. Source: names of llama.cpp's converter, gguf 0.19.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.config.gguf_metadata_reader import GGUFMetadataReader
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model

VISION_ARCHITECTURE = "clip"
"""general.architecture of a file that holds the vision or audio part of a model (mmproj)."""

MODEL_TYPE = "model"
"""general.type of a model; others are LoRA adapters, vision parts and calibration data."""

_LLAMA_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_QWEN3_LAYER = {**_LLAMA_LAYER, "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_GEMMA3_LAYER = {
    **_QWEN3_LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_NO_WINDOW = {"use_sliding_window": False, "sliding_window": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFArchitecture:
    """One value of `general.architecture`.

    Attributes:
        name: the value, which also begins the architecture's keys.
        architecture: name of the class in config.json.
        model_type: field of config.json.
        layer_names: module of a layer in canonical names -> its name behind `blk.N.` in the file.
        has_paired_rows: whether rows 2i and 2i + 1 of a query or key head rotate together; see head_order.
        norm_offset: is added to the weights of norms in the file.
        has_output_bias: whether biases of attention include one on the projection after attention.
        full_layer_period: of layers with a sliding window every n-th is full; None if all layers are full.
        exceeds_float16: whether activations of its models may be beyond float16.
        has_query_scalar: whether config.json has query_pre_attn_scalar and final_logit_softcapping.
        fields: further fields of config.json.
    """

    name: str
    architecture: str
    model_type: str
    layer_names: Mapping[str, str]
    has_paired_rows: bool = False
    norm_offset: float = 0.0
    has_output_bias: bool = True
    full_layer_period: int | None = None
    exceeds_float16: bool = False
    has_query_scalar: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


GGUF_ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    entry.name: entry
    for entry in (
        GGUFArchitecture(
            name="llama", architecture="LlamaForCausalLM", model_type="llama", layer_names=_LLAMA_LAYER,
            has_paired_rows=True, fields={"hidden_act": "silu"},
        ),
        GGUFArchitecture(
            name="qwen2", architecture="Qwen2ForCausalLM", model_type="qwen2", layer_names=_LLAMA_LAYER,
            has_output_bias=False, fields={"hidden_act": "silu", **_NO_WINDOW},
        ),
        GGUFArchitecture(
            name="qwen3", architecture="Qwen3ForCausalLM", model_type="qwen3", layer_names=_QWEN3_LAYER,
            fields={"hidden_act": "silu", **_NO_WINDOW},
        ),
        GGUFArchitecture(
            name="gemma3", architecture="Gemma3ForCausalLM", model_type="gemma3_text", layer_names=_GEMMA3_LAYER,
            norm_offset=1.0, full_layer_period=6, has_query_scalar=True, exceeds_float16=True,
            fields={"hidden_activation": "gelu_pytorch_tanh"},
        ),
    )
}  # fmt: skip
"""Value of `general.architecture` -> what it means. Files of Mistral models are `llama`, too."""


def gguf_architecture(metadata: Mapping[str, Any], file_name: str) -> GGUFArchitecture:
    """Return the entry of a file's architecture.

    Raises UnsupportedModel for a file that holds no model of text, UnsupportedArchitecture for another architecture,
    ModelError for a file that names none.
    """
    general = GGUFMetadataReader(metadata, "general", file_name)
    name, kind = general.text("architecture"), general.text_or("type", MODEL_TYPE)
    if name == VISION_ARCHITECTURE:
        raise unsupported_model(
            f"{file_name} is the vision or audio part of a model (general.architecture {name!r})",
            "use the file of the language model",
        )
    if kind != MODEL_TYPE:
        raise unsupported_model(
            f"{file_name} has general.type {reprlib.repr(kind)}, so it is not a model", "use the file of the model"
        )
    if name not in GGUF_ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"{file_name} has architecture {reprlib.repr(name)}, and of GGUF files {', '.join(GGUF_ARCHITECTURES)} are "
            f"supported; {ORIGINAL}", remedy=ORIGINAL,
        )  # fmt: skip
    return GGUF_ARCHITECTURES[name]
