"""Qwen3: Llama's decoder with a norm over each query and key head. Source: transformers 5.23 models/qwen3."""

from chairlift.model.architectures.llama import build_pre_norm
from chairlift.model.layers.decoder import DecoderParts
from chairlift.model.layers.rope import RopeTable
from chairlift.model.loading.model_config import ModelConfig
from chairlift.model.loading.parameter_loader import Take


def build(config: ModelConfig, take: Take, ropes: tuple[RopeTable, RopeTable]) -> DecoderParts:
    """Describe the decoder, with its parameters."""
    return build_pre_norm(config, take, ropes, head_norm=True)
