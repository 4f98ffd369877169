"""ARCHITECTURES: Chairlift's own architectures by their names in config.json. Imports no torch."""

from collections.abc import Mapping

from chairlift.model.config.architectures import gemma3, llama, mistral, qwen2, qwen3
from chairlift.model.config.architectures.architecture import Architecture

_ALL = (
    llama.LLAMA,
    mistral.MISTRAL,
    qwen2.QWEN2,
    qwen3.QWEN3,
    gemma3.GEMMA3,
)

ARCHITECTURES: Mapping[str, Architecture] = {name: each for each in _ALL for name in each.names}
"""Name of an architecture in config.json -> its entry."""
