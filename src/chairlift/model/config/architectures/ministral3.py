"""MINISTRAL3: Mistral's layers with YaRN and a factor on queries by position; also the text part of its wrapper.

Source: transformers 5.23 models/ministral3.
"""

from collections.abc import Mapping
from typing import Any

from chairlift.model.config.architectures import mistral
from chairlift.model.config.architectures.architecture import (
    TEXT_WRAPPER_PREFIXES,
    Architecture,
    GGUFArchitecture,
    GGUFContents,
)
from chairlift.model.config.architectures.decoder_fields import (
    LLAMA_DEFAULTS,
    LLAMA_GGUF_LAYER,
    decoder_config,
    same_window,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig, QueryScaling

_DEFAULT_ROPE = {
    "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    # The wrapper's text part is that of an older model unless it says something else.
    if fields.get("model_type") in ("mistral", "mistral3"):
        return mistral.MISTRAL.read_config(architecture, fields.with_defaults(mistral.MISTRAL.defaults))
    rope = ConfigReader(fields.object("rope_scaling") or fields.object("rope_parameters"), {})
    length = rope.size_or("original_max_position_embeddings", fields.size("max_position_embeddings"))
    return decoder_config(
        architecture, fields, same_window(fields),
        query_scaling=QueryScaling(beta=rope.number("llama_4_scaling_beta"), length=length),
    )  # fmt: skip


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    """Return the factor on queries; a file without it is of an older Mistral."""
    beta, scaling = contents.read.number_or_zero("attention.temperature_scale"), contents.fields["rope_scaling"]
    if not beta:
        return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
    length = contents.read.size_or("rope.scaling.original_context_length", contents.fields["max_position_embeddings"])
    return {
        "rope_scaling": {
            "rope_type": "default", **(scaling or {}), "llama_4_scaling_beta": beta,
            "original_max_position_embeddings": length,
        },
        "sliding_window": None,
    }  # fmt: skip


MINISTRAL3 = Architecture(
    names=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
    models="Ministral 3, Mistral Small 3, the text parts",
    defaults={
        **LLAMA_DEFAULTS, "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "sliding_window": None, "rope_theta": 1000000.0,
        "rope_parameters": _DEFAULT_ROPE,
    },
    read_config=_read_config,
    ignored_prefixes=TEXT_WRAPPER_PREFIXES,
    gguf=GGUFArchitecture(
        name="mistral3", architecture="Ministral3ForCausalLM", model_type="ministral3", layer_names=LLAMA_GGUF_LAYER,
        has_paired_rows=True, read_fields=_read_gguf, fields={"hidden_act": "silu"},
    ),
)  # fmt: skip
