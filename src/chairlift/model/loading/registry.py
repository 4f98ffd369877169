"""Architecture name -> family, imported lazily; and the two ways to a model: from a folder, or with random weights."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from chairlift.model.layers.causal_lm import CausalLM
from chairlift.model.layers.decoder import DecoderParts
from chairlift.model.layers.ops import TorchOps
from chairlift.model.layers.rope import RopeTable
from chairlift.model.loading.checkpoint import Checkpoint, random_parameters
from chairlift.model.loading.model_config import DTYPES, ModelConfig, read_config
from chairlift.model.loading.parameter_loader import Take
from chairlift.model.model_backend import Execution, TorchExecution

FAMILIES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
}
"""Architecture, as in config.json -> module in model/architectures/ that has a `build`."""


class Family(Protocol):
    """What a module in model/architectures/ has."""

    def build(self, config: ModelConfig, take: Take, ropes: tuple[RopeTable, RopeTable]) -> DecoderParts:
        """Describe the decoder, asking `take` for every parameter once."""
        ...


def family_of(architecture: str) -> Family:
    """Import the family of an architecture. Raises UnsupportedArchitecture."""
    if architecture not in FAMILIES:
        raise UnsupportedArchitecture(f"architecture {architecture} is unknown; supported are {', '.join(FAMILIES)}")
    return cast("Family", importlib.import_module(f"chairlift.model.architectures.{FAMILIES[architecture]}"))


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of each parameter that the architecture takes; builds nothing that has memory."""
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, shape: tuple[int, ...]) -> Tensor:
        assert name not in shapes, f"{name} is taken twice"
        shapes[name] = shape
        return one.expand(shape)  # one number that poses as a tensor; a meta tensor would import sympy, for 1.5 s

    one = torch.zeros(())
    take = Take(note, join=lambda parts: parts[0])  # what they would be joined into has memory
    _build(config, take, torch.float32, torch.device("cpu"), 1, lambda _: TorchExecution(TorchOps()))
    return shapes


def load_model(
    folder: Path,
    *,
    dtype: str,
    device: torch.device,
    max_model_len: int | None,
    execution: Callable[[ModelConfig], Execution] | None = None,
) -> tuple[CausalLM, ModelConfig]:
    """Load a model folder.

    Args:
        folder: with config.json and safetensors.
        dtype: "auto" is the checkpoint's own; else one of DTYPES.
        device: where parameters go.
        max_model_len: positions that the rotation tables cover; None is the model's own limit.
        execution: returns who runs a decoder of a config, whose dtype is the one as loaded; torch by default.

    Returns the model, and its config with `dtype` as loaded and `tie_word_embeddings` as found.
    Raises ModelError that names the file, the field or the tensor, and UnsupportedArchitecture.
    """
    config = read_config(folder)
    positions = config.context_length(max_model_len)
    checkpoint = Checkpoint.open(folder, config.architecture)
    config = replace(
        config,
        dtype=(config.dtype or checkpoint.dtype()) if dtype == "auto" else dtype,
        tie_word_embeddings=checkpoint.settle_tie(config.tie_word_embeddings),
    )
    checkpoint.check(parameter_shapes(config))
    kind = torch_dtype(config.dtype)
    try:
        return _build(config, checkpoint.taker(kind, device), kind, device, positions, execution), config
    # On the CPU torch says with a plain RuntimeError that memory is out.
    except (OSError, MemoryError, RuntimeError) as error:
        raise ModelError(f"cannot load the weights of {folder}: {error}", file=str(folder)) from error


def random_model(
    config: ModelConfig, *, seed: int, dtype: str, device: torch.device, max_model_len: int | None,
    scale: float = 0.2, change: Callable[[str, Tensor], Tensor] | None = None,
    execution: Callable[[ModelConfig], Execution] | None = None,
) -> tuple[CausalLM, ModelConfig]:  # fmt: skip
    """Make a model of this shape with random weights, the same for the same seed; dtype "auto" is the config's own.

    `change` may put another tensor in the place of what was drawn for a name.
    """
    config = replace(config, dtype=(config.dtype or "float32") if dtype == "auto" else dtype)
    kind = torch_dtype(config.dtype)
    take = random_parameters(config, seed, scale, change)(kind, device)
    return _build(config, take, kind, device, config.context_length(max_model_len), execution), config


def torch_dtype(name: str | None) -> torch.dtype:
    """Return the torch dtype of a name in DTYPES. Raises ModelError."""
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is unknown; known are {', '.join(DTYPES)}")
    kind: torch.dtype = getattr(torch, str(name))
    return kind


def _build(
    config: ModelConfig, take: Take, dtype: torch.dtype, device: torch.device, positions: int,
    chosen: Callable[[ModelConfig], Execution] | None,
) -> CausalLM:  # fmt: skip
    execution = TorchExecution.best(dtype, device) if chosen is None else chosen(config)
    dtype = execution.rope_dtype(dtype)
    full = RopeTable.of(config.rope, config.head_dim, positions, dtype, device)
    if config.sliding_rope == config.rope:
        ropes = (full, full)
    else:
        ropes = (full, RopeTable.of(config.sliding_rope, config.head_dim, positions, dtype, device))
    return execution.decoder(family_of(config.architecture).build(config, execution.taking(take), ropes))
