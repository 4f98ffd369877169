"""StateCache: the states of running sequences and the checkpoints of all layers with a state.

The entries are slots, followed by checkpoints; see StateStep.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chairlift.engine.step_plan import StepPlan
from chairlift.model.batch.state_step import Int32, StateStep
from chairlift.model.config.state_layers import StateShape
from chairlift.model.device.page_prefault import lazy_zeros
from chairlift.model.device.pinned_copy import copy_from_pinned


@dataclass(frozen=True, slots=True)
class PartialChunk:
    """The tokens of running sequences' chunks that are not whole yet, where the recurrence goes chunk by chunk.

    A slot has the first position % C of C tokens; the rest is undefined. A checkpoint has none: it ends with a chunk.

    Attributes:
        key: [slots, C, key heads, key_dim].
        update: [slots, C, heads, value_dim], what each token's key writes to the state.
        decay: [slots, C, heads].
    """

    key: Tensor
    update: Tensor
    decay: Tensor


@dataclass(frozen=True, slots=True)
class LayerStates:
    """The states of one layer, contiguous.

    Attributes:
        convolution: [entries, width - 1, channels], the last inputs of the convolution, the oldest first.
        recurrent: [entries, heads, key_dim, value_dim]; None for a layer with a convolution only.
        partial_chunk: where the recurrence goes chunk by chunk; the recurrent state is that before this chunk then.
    """

    convolution: Tensor
    recurrent: Tensor | None
    partial_chunk: PartialChunk | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the states that there are; the first axis of each is the entries."""
        return (self.convolution,) if self.recurrent is None else (self.convolution, self.recurrent)

    @property
    def num_bytes(self) -> int:
        """Bytes of all entries, and of partial chunks."""
        partial = self.partial_chunk
        chunks = () if partial is None else (partial.key, partial.update, partial.decay)
        return sum(tensor.nbytes for tensor in (*self.tensors(), *chunks))


class StateCache:
    """The states of all layers with a state.

    Owns: their memory. Does not own: which sequence has a slot, which prefix has a checkpoint (the scheduler decides).

    Attributes:
        layers: states by index of the layer among those with a state.
        num_slots: entries of running sequences.
        num_checkpoints: entries behind them.
    """

    def __init__(
        self, shapes: Sequence[StateShape], num_slots: int, num_checkpoints: int, dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        """Allocate zeroed states for layers of these shapes; `dtype` is the model's. Raises MemoryError or OSError."""
        self.num_slots, self.num_checkpoints, self._device = num_slots, num_checkpoints, device

        def zeros(shape: tuple[int, ...], count: int = num_slots + num_checkpoints) -> Tensor:
            whole = (count, *shape)
            if device.type == "cpu":
                return lazy_zeros(whole, state_dtype(dtype))
            return torch.zeros(whole, dtype=state_dtype(dtype), device=device)

        def layer(shape: StateShape) -> LayerStates:
            partial = shape.partial_chunk()
            return LayerStates(
                zeros(shape.convolution),
                None if shape.recurrent is None else zeros(shape.recurrent),
                None if partial is None else PartialChunk(*(zeros(each, num_slots) for each in partial)),
            )

        self.layers = tuple(map(layer, shapes))

    def load(self, loads: Int32) -> None:
        """Copy states, as they were before the call: `loads` int32 [L, 2] of entries (from, to), StateStep.loads.

        Must be called before the layers of a step run.
        """
        if len(loads) == 0:
            return
        sources, targets = copy_from_pinned(loads.astype(np.int64), self._device).unbind(1)
        for layer in self.layers:
            for tensor in layer.tensors():
                tensor[targets] = tensor[sources]

    def step(self, plan: StepPlan) -> StateStep:
        """Return the rows of a plan as layers with a state need them."""
        return StateStep.of(
            plan.slots, plan.num_new_tokens, plan.start_positions, plan.state_loads, plan.state_saves,
            num_slots=self.num_slots, device=self._device,
        )  # fmt: skip

    @property
    def num_bytes(self) -> int:
        """Bytes of all states."""
        return sum(layer.num_bytes for layer in self.layers)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the states, and of the recurrence, of a model of a dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32
