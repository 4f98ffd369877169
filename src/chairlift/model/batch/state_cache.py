"""StateCache: the states of running sequences and the checkpoints of all layers with a state.

The entries are slots, followed by checkpoints; see StateStep.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.batch.state_step import Int32
from chairlift.model.config.state_layers import StateShape
from chairlift.model.device.page_prefault import lazy_zeros


@dataclass(frozen=True, slots=True)
class LayerStates:
    """The states of one layer, contiguous.

    Attributes:
        convolution: [entries, width - 1, channels], the last inputs of the convolution, the oldest first.
        recurrent: [entries, heads, key_dim, value_dim]; None for a layer with a convolution only.
    """

    convolution: Tensor
    recurrent: Tensor | None

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that there are; the first axis of each is the entries."""
        return (self.convolution,) if self.recurrent is None else (self.convolution, self.recurrent)


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
        self.num_slots, self.num_checkpoints = num_slots, num_checkpoints

        def zeros(shape: tuple[int, ...]) -> Tensor:
            whole = (num_slots + num_checkpoints, *shape)
            if device.type == "cpu":
                return lazy_zeros(whole, state_dtype(dtype))
            return torch.zeros(whole, dtype=state_dtype(dtype), device=device)

        self.layers = tuple(
            LayerStates(zeros(shape.convolution), None if shape.recurrent is None else zeros(shape.recurrent))
            for shape in shapes
        )

    def load(self, loads: Int32) -> None:
        """Copy states, as they were before the call: `loads` int32 [L, 2] of entries (from, to), StateStep.loads.

        Must be called before the layers of a step run.
        """
        if len(loads) == 0:
            return
        pairs = torch.from_numpy(loads).long()
        for layer in self.layers:
            for tensor in layer.tensors():
                sources, targets = pairs.to(tensor.device).unbind(1)
                tensor[targets] = tensor[sources]

    def save(self, slot: int, checkpoint: int) -> None:
        """Copy the states of a slot to a checkpoint, as for a preempted sequence."""
        for layer in self.layers:
            for tensor in layer.tensors():
                tensor[self.num_slots + checkpoint].copy_(tensor[slot])

    def clear(self, entry: int) -> None:
        """Set the states of an entry to zeros. A sequence that starts at position 0 does not need it."""
        for layer in self.layers:
            for tensor in layer.tensors():
                tensor[entry].zero_()

    @property
    def num_bytes(self) -> int:
        """Bytes of all states."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors())


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the states, and of the recurrence, of a model of a dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32
