"""Layers with a state for tests: small random layers of each kind, and runs of sequences in chunks through them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from chairlift.model.batch.state_cache import LayerStates, StateCache
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.state_layers import GatedDeltaNetConfig, Mamba2Config, ShortConvConfig, StateLayerConfig
from chairlift.model.layers.gated_delta_net import GatedDeltaNet
from chairlift.model.layers.mamba2 import Mamba2
from chairlift.model.layers.ops import Ops, TorchOps
from chairlift.model.layers.short_convolution import ShortConvolution
from chairlift.model.weights.parameter_loader import ParameterLoader

CPU = torch.device("cpu")
HIDDEN = 48
StateLayer = GatedDeltaNet | Mamba2 | ShortConvolution

CONFIGS: dict[str, StateLayerConfig] = {
    "delta": GatedDeltaNetConfig(num_key_heads=2, num_value_heads=6, key_dim=16, value_dim=48),
    "delta-sigmoid": GatedDeltaNetConfig(
        num_key_heads=3, num_value_heads=3, key_dim=32, value_dim=16, gate_activation="sigmoid"
    ),
    "mamba2": Mamba2Config(num_heads=4, head_dim=16, state_size=32, num_groups=2),
    "mamba2-limits": Mamba2Config(
        num_heads=3, head_dim=48, state_size=16, conv_bias=False, projection_bias=True, min_dt=0.3, max_dt=0.9
    ),
    "short": ShortConvConfig(hidden_size=HIDDEN),
    "short-bias": ShortConvConfig(hidden_size=HIDDEN, conv_width=4, bias=True),
}


def parameter_loader(parameters: Mapping[str, Tensor]) -> ParameterLoader:
    """Return a loader of these parameters."""

    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        assert parameters[name].shape == shape, f"{name}: {tuple(parameters[name].shape)}, not {shape}"
        return parameters[name]

    return ParameterLoader(read)


def load_layer(config: StateLayerConfig, loader: ParameterLoader, hidden_size: int = HIDDEN) -> StateLayer:
    """Load a layer whose parameters are named "layer.*"."""
    if isinstance(config, GatedDeltaNetConfig):
        return GatedDeltaNet.load(loader, "layer", config, hidden_size)
    if isinstance(config, Mamba2Config):
        return Mamba2.load(loader, "layer", config, hidden_size)
    return ShortConvolution.load(loader, "layer", config)


def random_layer(config: StateLayerConfig, dtype: torch.dtype, seed: int = 0) -> StateLayer:
    """Return a layer with random parameters, which are the same numbers in each dtype up to rounding."""
    dice = torch.Generator().manual_seed(seed)

    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        size = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
        values = torch.randn(shape, generator=dice, dtype=torch.float64) * size
        if name.endswith("A_log"):
            values = torch.rand(shape, generator=dice, dtype=torch.float64) * 3 - 2
        if name.endswith("norm.weight"):
            values = 1.0 + 0.2 * values
        return values.to(dtype)

    return load_layer(config, ParameterLoader(read))


def make_cache(
    config: StateLayerConfig, dtype: torch.dtype, num_slots: int = 4, num_checkpoints: int = 4, fill: float = torch.nan,
    chunk_tokens: int = 0,
) -> StateCache:  # fmt: skip
    """Return a cache for one layer, full of NaN: what is read before it was written shows."""
    cache = StateCache([replace(config.state, chunk_tokens=chunk_tokens)], num_slots, num_checkpoints, dtype, CPU)
    for tensor in cache.layers[0].tensors():
        tensor.fill_(fill)
    return cache


@dataclass(frozen=True)
class Chunk:
    """Some new tokens of a sequence in a step.

    Attributes:
        slot: of the sequence.
        start: tokens of the sequence before.
        x: input [tokens, H].
        saves: (number of tokens, checkpoint).
    """

    slot: int
    start: int
    x: Tensor
    saves: tuple[tuple[int, int], ...] = ()


def make_step(chunks: Sequence[Chunk], num_slots: int, loads: Sequence[tuple[int, int]] = ()) -> StateStep:
    """Return the step of some chunks; loads are (checkpoint, slot)."""
    saves = [(row, *save) for row, chunk in enumerate(chunks) for save in chunk.saves]
    return StateStep.of(
        np.array([chunk.slot for chunk in chunks], np.int32), np.array([len(chunk.x) for chunk in chunks], np.int32),
        np.array([chunk.start for chunk in chunks], np.int32), np.array(loads, np.int32).reshape(-1, 2),
        np.array(saves, np.int32).reshape(-1, 3), num_slots=num_slots, device=CPU,
    )  # fmt: skip


Run = Callable[[Sequence[Chunk], StateCache, StateStep], Tensor]
"""Runs a step of chunks through a layer; returns the outputs of all tokens, [T, H]."""


def torch_run(layer: StateLayer, ops: Ops | None = None) -> Run:
    """Return a Run of a layer in torch."""

    def run(chunks: Sequence[Chunk], cache: StateCache, step: StateStep) -> Tensor:
        with torch.inference_mode():
            return layer(torch.cat([chunk.x for chunk in chunks]), cache.layers[0], step, ops or TorchOps())

    return run


def run_step(
    run: Run, cache: StateCache, chunks: Sequence[Chunk], loads: Sequence[tuple[int, int]] = ()
) -> list[Tensor]:
    """Load, run, and return the outputs of each chunk."""
    step = make_step(chunks, cache.num_slots, loads)
    cache.load(step.loads)
    return list(run(chunks, cache, step).split([len(chunk.x) for chunk in chunks]))


def run_chunks(
    run: Run, cache: StateCache, x: Tensor, counts: Sequence[int], slot: int = 0, start: int = 0
) -> Tensor:  # fmt: skip
    """Run a sequence in chunks of these numbers of tokens, from position `start` on; returns its outputs."""
    outputs = []
    for begin, count in zip(itertools.accumulate(counts, initial=0), counts, strict=False):
        outputs += run_step(run, cache, [Chunk(slot, start + begin, x[begin : begin + count])])
    return torch.cat(outputs)


def entry_states(states: LayerStates, entry: int) -> list[Tensor]:
    """Return copies of an entry's states."""
    return [tensor[entry].clone() for tensor in states.tensors()]


def have_same_bits(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Return whether tensors are equal bit by bit; NaN equals nothing."""
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def random_inputs(tokens: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return inputs [tokens, H]."""
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, HIDDEN, generator=dice, dtype=torch.float64).to(dtype)


class WideTorch:
    """The module torch with float64 in the place of float32."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


def compute_in_float64(monkeypatch: pytest.MonkeyPatch, modeling: ModuleType) -> None:
    """Make a modeling file of transformers compute in float64 where it computes in float32 in every model."""
    monkeypatch.setattr(modeling, "torch", WideTorch())
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def compare_with_module(
    layer: StateLayer, module: torch.nn.Module, cache_config: object, *, cache_name: str = "cache_params",
    counts: Sequence[int] = (2, 70, 1, 1, 13, 1, 1, 1),
) -> float:  # fmt: skip
    """Run a sequence in chunks of these numbers of tokens through both; return the largest relative difference.

    The module gets the cache of transformers as the argument `cache_name`.
    """
    cache, own = DynamicCache(config=cache_config), make_cache(layer.config, torch.float64)
    x, start, worst = random_inputs(sum(counts), torch.float64), 0, 0.0
    for count in counts:
        chunk = x[start : start + count]
        with torch.inference_mode():
            expected = module(chunk[None], **{cache_name: cache})[0]
        (found,) = run_step(torch_run(layer), own, [Chunk(0, start, chunk)])
        worst = max(worst, float((found - expected).abs().max() / expected.abs().max()))
        start += count
    return worst
