"""load_model, random_model, parameter_shapes: build a model from a folder or with random weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.backends.model_backend import ModelBackend
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.device.dtypes import resolve_dtype, torch_dtype
from chairlift.model.layers.causal_lm_protocol import CausalLM
from chairlift.model.layers.decoder_loading import load_decoder
from chairlift.model.layers.ops import TorchOps
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.parameter_loader import ParameterLoader
from chairlift.model.weights.random_parameters import random_parameters
from chairlift.model.weights.shard import Shard


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of each parameter of the architecture; allocates no weights."""
    shapes: dict[str, tuple[int, ...]] = {}

    def record(name: str, shape: tuple[int, ...]) -> Tensor:
        assert name not in shapes, f"{name} is loaded twice"
        shapes[name] = shape
        return scalar.expand(shape)  # one number expanded to the shape; a meta tensor would import sympy, for 1.5 s

    scalar = torch.zeros(())
    loader = ParameterLoader(record, join=lambda parts: parts[0])  # a joined tensor would need memory
    _build(config, loader, torch.float32, torch.device("cpu"), 1, lambda _: TorchBackend(TorchOps()))
    return shapes


def load_model(
    folder: Path,
    *,
    dtype: str,
    device: torch.device,
    max_model_len: int | None,
    choose_backend: Callable[[DecoderConfig], ModelBackend] | None = None,
    shard: Shard | None = None,
) -> tuple[CausalLM, DecoderConfig]:
    """Load a model folder.

    Args:
        folder: folder with config.json and safetensors.
        dtype: "auto" is the checkpoint's own; else one of DTYPES.
        device: device of the parameters.
        max_model_len: positions that the rotation tables cover; None is the model's own limit.
        choose_backend: returns the model backend for a config with the dtype as loaded; torch by default.
        shard: the part of one rank of several, which `choose_backend` must have chosen a backend for; None is all.

    Returns the model, and the whole model's config with `dtype` as loaded and `tie_word_embeddings` as the checkpoint
    has it.
    Raises ModelError that names the file, the field or the tensor, and UnsupportedArchitecture.
    """
    config = read_decoder_config(folder)
    positions = config.context_length(max_model_len)
    checkpoint = Checkpoint.open(folder, config.architecture)
    config = replace(
        config,
        dtype=resolve_dtype(dtype, config.dtype or checkpoint.dtype()),
        tie_word_embeddings=checkpoint.resolve_tied_embeddings(config.tie_word_embeddings),
    )
    shapes = parameter_shapes(config)
    checkpoint.arrange(config, shapes)
    checkpoint.check(shapes)
    kind = torch_dtype(config.dtype)
    try:
        loader = checkpoint.loader(kind, device, shard)
        return _build(config, loader, kind, device, positions, choose_backend, shard), config
    # On the CPU torch raises a plain RuntimeError when memory is short.
    except (OSError, MemoryError, RuntimeError) as error:
        raise ModelError(f"cannot load the weights of {folder}: {error}", file=str(folder)) from error


def random_model(
    config: DecoderConfig, *, seed: int, dtype: str, device: torch.device, max_model_len: int | None,
    scale: float = 0.2, change: Callable[[str, Tensor], Tensor] | None = None,
    choose_backend: Callable[[DecoderConfig], ModelBackend] | None = None, shard: Shard | None = None,
    draws_on_device: bool = False,
) -> tuple[CausalLM, DecoderConfig]:  # fmt: skip
    """Build a model of this config with random weights, the same for the same seed; dtype "auto" is the config's own.

    `change` may replace the random tensor of a name; `shard` as for load_model, `draws_on_device` as for
    random_parameters.
    """
    config = replace(config, dtype=resolve_dtype(dtype, config.dtype))
    kind = torch_dtype(config.dtype)
    whole_shapes = None if shard is None else parameter_shapes(config)
    make_loader = random_parameters(
        config, seed, scale, change, shard, whole_shapes, draws_on_device=draws_on_device
    )  # fmt: skip
    loader = make_loader(kind, device)
    return _build(config, loader, kind, device, config.context_length(max_model_len), choose_backend, shard), config


def _build(
    config: DecoderConfig, loader: ParameterLoader, dtype: torch.dtype, device: torch.device, positions: int,
    choose_backend: Callable[[DecoderConfig], ModelBackend] | None, shard: Shard | None = None,
) -> CausalLM:  # fmt: skip
    model_backend = TorchBackend.best(dtype, device) if choose_backend is None else choose_backend(config)
    config = config if shard is None else shard.config(config)
    loader = model_backend.wrap_loader(loader)
    return model_backend.decoder(load_decoder(config, loader, positions, model_backend.rope_dtype(dtype), device))
