"""Qwen3: Llama's decoder with a norm over each query and key head. Source: transformers 5.23 models/qwen3."""

from chairlift.model.architectures.llama import build_pre_norm
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.layers.decoder import DecoderSpec
from chairlift.model.layers.rope import RopeTable
from chairlift.model.weights.parameter_loader import ParameterLoader


def build(config: DecoderConfig, loader: ParameterLoader, ropes: tuple[RopeTable, RopeTable]) -> DecoderSpec:
    """Build the decoder with its parameters."""
    return build_pre_norm(config, loader, ropes, head_norm=True)
