"""MIXTRAL: Mistral with experts. Source: transformers 5.23 models/mixtral."""

from chairlift.model.config.architectures.architecture import Architecture
from chairlift.model.config.architectures.decoder_fields import LLAMA_DEFAULTS, decoder_config, same_window
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.experts_config import ExpertFields, read_experts

EXPERTS = ExpertFields(
    defaults={
        "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 14336, "hidden_act": "silu",
    },
    size="intermediate_size",
    renamed=((r"\.block_sparse_moe\.", ".mlp."),),
)  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    return decoder_config(architecture, fields, same_window(fields), experts=read_experts(EXPERTS, fields))


MIXTRAL = Architecture(
    names=("MixtralForCausalLM",),
    models="Mixtral",
    defaults={
        **LLAMA_DEFAULTS, **EXPERTS.defaults, "vocab_size": 32000, "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "sliding_window": None, "rope_theta": 1000000.0,
    },
    read_config=_read_config,
    experts=EXPERTS,
)  # fmt: skip
