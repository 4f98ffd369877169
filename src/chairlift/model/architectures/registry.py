"""ARCHITECTURES, architecture_module: the supported architectures and their modules, imported lazily."""

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.layers.decoder import DecoderSpec
from chairlift.model.layers.rope import RopeTable
from chairlift.model.weights.parameter_loader import ParameterLoader

ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
}
"""Architecture, as in config.json -> module in model/architectures/ that has a `build`."""


class Architecture(Protocol):
    """The interface of a module in model/architectures/."""

    def build(self, config: DecoderConfig, loader: ParameterLoader, ropes: tuple[RopeTable, RopeTable]) -> DecoderSpec:
        """Build the decoder's parts, loading every parameter once with `loader`."""
        ...


def architecture_module(architecture: str) -> Architecture:
    """Import the module of an architecture. Raises UnsupportedArchitecture."""
    if architecture not in ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"architecture {architecture} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    return cast("Architecture", importlib.import_module(f"chairlift.model.architectures.{ARCHITECTURES[architecture]}"))
