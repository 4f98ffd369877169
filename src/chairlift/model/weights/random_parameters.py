"""random_parameters: makes loaders of random weights that depend on seed, name and shape only."""

import hashlib
import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.weights.checkpoint import padded
from chairlift.model.weights.parameter_loader import ParameterLoader
from chairlift.model.weights.shard import Shard

NORM = re.compile(r"norm(_\d)?\.weight$")
"""End of the name of the weight of a norm."""

FACTORS = (".scale", ".per_expert_scale", ".layer_scalar")
"""Ends of the names of other factors."""


def random_parameters(
    config: DecoderConfig,
    seed: int,
    scale: float,
    change: Callable[[str, Tensor], Tensor] | None = None,
    shard: Shard | None = None,
    whole_shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    draws_on_device: bool = False,
) -> Callable[[torch.dtype, torch.device], ParameterLoader]:
    """Return a factory of ParameterLoaders with normal weights of standard deviation `scale`, and factors near one.

    A tensor depends on the seed, its name and its shape only; it is generated in float32, so each dtype rounds the
    same numbers. `change` may replace the tensor of a name. With a shard the loaders have one rank's parts of the
    tensors, whose `whole_shapes` are by name. With `draws_on_device` a device generates its own numbers, other ones
    than the CPU's, which takes seconds for billions of weights.
    """

    def generate(name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        weights = torch.randn(shape, generator=generator, device=device)
        if NORM.search(name):
            weights = weights * 0.1 + (1.0 - config.norm_offset)
        elif name.endswith(FACTORS):
            weights = weights * 0.1 + 1.0
        else:
            weights *= scale
        return weights if change is None else change(name, weights)

    def generate_part(name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        if shard is None or whole_shapes is None:
            return generate(name, shape, device)
        whole = whole_shapes[name]
        return padded(generate(name, whole, device)[shard.part(name, whole, shape)], shape)

    def make_loader(dtype: torch.dtype, device: torch.device) -> ParameterLoader:
        source = device if draws_on_device else torch.device("cpu")
        return ParameterLoader(lambda name, shape: generate_part(name, shape, source).to(device=device, dtype=dtype))

    return make_loader
