"""add_state_layer, NativeStates: layers with a state as operations of a native decoder, and their states.

                 ┌ gates ───────────────────────────────────────┐
    [projected] ─┼ channels → convolution → [mixed] → recurrence → [recurred] → gated_norm → [out]
                 └ b, a or dt ───────────────────┘
    [projected] ─ B, C, x → convolution → [out]                                            short convolution

They read the output of the layer's projection and write the input of its output projection; the caller adds both
products. [mixed] and [recurred] can be shared by all layers. The kernels compute in float32 and keep float32 states,
also in a bfloat16 model, so outputs and states have the same bits however a prompt is cut. A recurrent state has
another order of numbers than in torch (dense_state).
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chairlift.model.batch.state_cache import StateCache
from chairlift.model.batch.state_step import Int32, StateStep, entry_saves
from chairlift.model.config.state_layers import GatedDeltaNetConfig, Mamba2Config, StateLayerConfig
from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.layers.causal_convolution import CausalConvolution
from chairlift.model.layers.gated_delta_net import GatedDeltaNet
from chairlift.model.layers.gated_rms_norm import GatedRMSNorm
from chairlift.model.layers.mamba2 import Mamba2
from chairlift.model.layers.short_convolution import ShortConvolution

StateLayer = GatedDeltaNet | Mamba2 | ShortConvolution

Keep = Callable[[Tensor], int]
"""Converts a tensor to float32, keeps it alive as long as the decoder, and returns its address."""


@dataclass(frozen=True, slots=True)
class StateBuffers:
    """Numbers of float32 buffers between a layer's operations.

    Attributes:
        mixed: the convolution's output, as wide as the widest layer's channels.
        recurred: the recurrence's output, as wide as the widest layer's heads.
    """

    mixed: int
    recurred: int

    @classmethod
    def add(cls, handle: int, configs: Sequence[StateLayerConfig]) -> "StateBuffers":
        """Add the buffers for layers of these configs to a decoder."""
        recurrent = [config for config in configs if isinstance(config, GatedDeltaNetConfig | Mamba2Config)]
        mixed = max((config.channels for config in recurrent), default=library.PANEL)
        recurred = max((output_width(config) for config in recurrent), default=library.PANEL)
        add = library.load().add_buffer
        return cls(
            add(handle, library.F32, mixed, library.BFLOAT16), add(handle, library.F32, recurred, library.BFLOAT16)
        )  # fmt: skip


def obstacle(config: StateLayerConfig) -> str | None:
    """Return why the native kernels cannot compute a layer of this config; None if they can."""
    widths = {"channels": config.channels}
    if isinstance(config, GatedDeltaNetConfig):
        widths |= {"key_dim": config.key_dim, "value_dim": config.value_dim}
    if isinstance(config, Mamba2Config):
        group = config.inner_width // config.num_groups
        widths |= {"state_size": config.state_size, "head_dim": config.head_dim, "the norm's group": group}
    for name, width in widths.items():
        if width % library.STATE_WIDTH:
            return f"{name} of a layer with a state is {width}, no multiple of {library.STATE_WIDTH}"
    key_dim = _key_dim(config)
    if key_dim > library.MAX_KEY_DIM:
        return f"the state of a head has {key_dim} rows, the kernels take at most {library.MAX_KEY_DIM}"
    return None


def add_state_layer(
    handle: int, layer: StateLayer, index: int, projected: int, buffers: StateBuffers, out: int, keep: Keep
) -> None:
    """Add the operations of a layer between its two projections.

    Args:
        handle: the library's decoder.
        layer: the layer; its projections are not read.
        index: of the layer among those with a state.
        projected: float32 buffer with the projection's output, in the order of its rows.
        buffers: see StateBuffers.
        out: float32 or bfloat16 buffer for the output projection's input.
        keep: see Keep.
    """
    if isinstance(layer, GatedDeltaNet):
        _add_gated_delta_net(handle, layer, index, projected, buffers, out, keep)
    elif isinstance(layer, Mamba2):
        _add_mamba2(handle, layer, index, projected, buffers, out, keep)
    else:
        _add_convolution(handle, layer.convolution, index, projected, 0, out, keep, is_gated=True)


def dense_state(recurrent: Tensor) -> Tensor:
    """Return recurrent states [..., key_dim, value_dim] of the kernels in the order of torch's layers."""
    *outer, key_dim, value_dim = recurrent.shape
    panels = recurrent.reshape(*outer, value_dim // library.STATE_WIDTH, key_dim, library.STATE_WIDTH)
    return panels.transpose(-3, -2).reshape(recurrent.shape)


class NativeStates:
    """The states of a cache as the library takes them. Keeps alive what the last step or plan points to."""

    def __init__(self, cache: StateCache) -> None:
        """Take the addresses of a cache's states, which must be float32; the cache stays alive with this object."""
        self._cache = cache
        self._states = (kernel_structs.StepState * len(cache.layers))()
        for to, layer in zip(self._states, cache.layers, strict=True):
            for tensor in layer.tensors():
                assert tensor.dtype == torch.float32, "the kernels need float32 states"
                assert tensor.is_contiguous(), "the kernels need contiguous states"
            to.convolution = layer.convolution.data_ptr()
            to.recurrent = None if layer.recurrent is None else layer.recurrent.data_ptr()
        self._slots: Tensor | None = None
        self._saves: Int32 = np.empty((0, 3), np.int32)

    def set_step(self, to: kernel_structs.Step, step: StateStep) -> None:
        """Set the slots, saves and states of a step."""
        self._slots = step.slots.int()
        to.slots = self._slots.data_ptr()
        self._set(to, step.saves)

    def set_plan(self, to: kernel_structs.Plan, saves: Int32) -> None:
        """Set the saves (row, number, checkpoint) and the states of a plan, which has its slots itself.

        The library refuses a save that the plan or the cache does not have.
        """
        to.num_entries = self._cache.num_slots + self._cache.num_checkpoints
        self._set(to, entry_saves(saves, self._cache.num_slots))

    def _set(self, to: kernel_structs.Step | kernel_structs.Plan, saves: Int32) -> None:
        self._saves = np.ascontiguousarray(saves, np.int32)
        to.saves, to.num_saves, to.states = self._saves.ctypes.data, len(saves), self._states


def _add_gated_delta_net(
    handle: int, layer: GatedDeltaNet, index: int, projected: int, buffers: StateBuffers, out: int, keep: Keep
) -> None:
    config = layer.config
    _add_convolution(handle, layer.convolution, index, projected, 0, buffers.mixed, keep)
    beta_column = config.channels + config.value_width
    shape = kernel_structs.RecurrenceShape(
        kind=library.DELTA_RULE, num_key_heads=config.num_key_heads, num_heads=config.num_value_heads,
        key_dim=config.key_dim, value_dim=config.value_dim, query_column=0, key_column=config.key_width,
        value_column=2 * config.key_width, beta_column=beta_column, decay_column=beta_column + config.num_value_heads,
        decay_rates=keep(layer.decay_rate), dt_bias=keep(layer.dt_bias),
    )  # fmt: skip
    library.load().add_recurrence(handle, buffers.mixed, projected, buffers.recurred, index, ctypes.byref(shape))
    _add_gated_norm(handle, layer.norm, buffers.recurred, projected, config.channels, config.value_width, out, keep)


def _add_mamba2(
    handle: int, layer: Mamba2, index: int, projected: int, buffers: StateBuffers, out: int, keep: Keep
) -> None:  # fmt: skip
    config = layer.config
    inner, group = config.inner_width, config.group_width
    _add_convolution(handle, layer.convolution, index, projected, inner, buffers.mixed, keep)
    shape = kernel_structs.RecurrenceShape(
        kind=library.STATE_SPACE, num_key_heads=config.num_groups, num_heads=config.num_heads,
        key_dim=config.state_size, value_dim=config.head_dim, value_column=0, key_column=inner,
        query_column=inner + group, decay_column=inner + config.channels, decay_rates=keep(layer.decay_rate),
        dt_bias=keep(layer.dt_bias), skips=keep(layer.skip), min_dt=config.min_dt, max_dt=config.max_dt,
    )  # fmt: skip
    library.load().add_recurrence(handle, buffers.mixed, projected, buffers.recurred, index, ctypes.byref(shape))
    _add_gated_norm(handle, layer.norm, buffers.recurred, projected, 0, inner, out, keep)


def _add_convolution(
    handle: int, convolution: CausalConvolution, index: int, source: int, first_column: int, out: int, keep: Keep, *,
    is_gated: bool = False,
) -> None:  # fmt: skip
    width, channels = convolution.weight.shape
    bias = None if convolution.bias is None else keep(convolution.bias)
    library.load().add_convolution(
        handle, source, out, index, first_column, channels, width, keep(convolution.weight), bias, is_gated
    )


def _add_gated_norm(
    handle: int, norm: GatedRMSNorm, source: int, gate: int, gate_column: int, width: int, out: int, keep: Keep
) -> None:  # fmt: skip
    groups, group_width = norm.weight.shape
    weight = keep(norm.weight.expand(width // group_width if groups == 1 else groups, -1).reshape(-1))
    library.load().add_gated_norm(
        handle, source, gate, gate_column, width, group_width, weight, norm.eps, norm.gate_first,
        norm.activation == "sigmoid", out,
    )  # fmt: skip


def output_width(config: StateLayerConfig) -> int:
    """Return the width of the output projection's input."""
    if isinstance(config, GatedDeltaNetConfig):
        return config.value_width
    return config.inner_width if isinstance(config, Mamba2Config) else config.channels


def _key_dim(config: StateLayerConfig) -> int:
    return 0 if config.state.recurrent is None else config.state.recurrent[1]
