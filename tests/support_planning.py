"""Model shapes and replicas for the tests of planning."""

from dataclasses import asdict
from typing import Any

from chairlift.bench.planning.model_shape import ModelShape, shape_of_loaded
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig
from support_checkpoints import PUBLISHED

LLAMA_70B: dict[str, Any] = {
    **PUBLISHED["Llama-3.2-1B"], "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    "num_hidden_layers": 80, "tie_word_embeddings": False, "head_dim": 128,
}  # fmt: skip
SMOL135: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}  # fmt: skip
TINY: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024,
}  # fmt: skip
"""Fields that config.json of every decoder has."""


def loaded_config(name: str) -> DecoderConfig:
    """Return the loader's config of a published model, "llama-70b" or "smol135"."""
    return parse_decoder_config({"llama-70b": LLAMA_70B, "smol135": SMOL135, **PUBLISHED}[name])


def published_shape(name: str) -> ModelShape:
    """Return the shape of the same models."""
    return shape_of_loaded(asdict(loaded_config(name)), {})
