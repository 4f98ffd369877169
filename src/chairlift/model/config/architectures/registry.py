"""ARCHITECTURES: Chairlift's own architectures by their names in config.json. Imports no torch."""

from collections.abc import Mapping

from chairlift.model.config.architectures import (
    gemma2,
    gemma3,
    gemma4,
    glm4,
    gpt_oss,
    granite,
    granite_hybrid,
    lfm2,
    llama,
    ministral3,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    olmoe,
    phi3,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_moe,
    qwen3_next,
    smollm3,
)
from chairlift.model.config.architectures.architecture import Architecture

_ALL = (
    llama.LLAMA,
    mistral.MISTRAL,
    qwen2.QWEN2,
    qwen3.QWEN3,
    gemma3.GEMMA3,
    gemma4.GEMMA4,
    qwen3_5.QWEN3_5,
    qwen3_5.QWEN3_5_MOE,
    qwen3_next.QWEN3_NEXT,
    qwen3_moe.QWEN3_MOE,
    gemma2.GEMMA2,
    phi3.PHI3,
    smollm3.SMOLLM3,
    granite.GRANITE,
    granite_hybrid.GRANITE_HYBRID,
    lfm2.LFM2,
    olmo2.OLMO2,
    olmo3.OLMO3,
    ministral3.MINISTRAL3,
    glm4.GLM4,
    gpt_oss.GPT_OSS,
    mixtral.MIXTRAL,
    olmoe.OLMOE,
)

ARCHITECTURES: Mapping[str, Architecture] = {name: each for each in _ALL for name in each.names}
"""Name of an architecture in config.json -> its entry."""
