"""CausalConvolution: a convolution over each channel's last tokens, whose last inputs are a state.

    inputs of a row with two new tokens:   | state 0 | state 1 | state 2 | new 0 | new 1 |
    outputs, width 4:                        new 0 reads state 0 to new 0, new 1 reads state 1 to new 1
    state after n new tokens:                inputs n to n + 2

The products of a token are added in one order, the oldest input first, so an output has the same bits in every chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.batch.state_cache import state_dtype
from chairlift.model.batch.state_step import StateStep
from chairlift.model.weights.parameter_loader import ParameterLoader


@dataclass(frozen=True, slots=True)
class CausalConvolution:
    """A depthwise convolution, computed in float32, or in float64 in a float64 model.

    Attributes:
        weight: [width, channels]; the last row is that of the token itself.
        bias: [channels] or None.
    """

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, channels: int, width: int, bias: bool) -> "CausalConvolution":
        """Load name.weight [channels, 1, width] and, with `bias`, name.bias [channels]."""
        weight = loader(f"{name}.weight", (channels, 1, width))
        wide = state_dtype(weight.dtype)
        return cls(weight[:, 0].T.to(wide).contiguous(), loader(f"{name}.bias", (channels,)).to(wide) if bias else None)

    def __call__(self, x: Tensor, states: Tensor, step: StateStep) -> Tensor:
        """Convolve x [T, channels] of the weight's dtype; returns the same shape, zeros for padding tokens.

        Moves the states [entries, width - 1, channels] of the rows on, and saves those that the step names.
        """
        out = torch.zeros_like(x)
        for first, rows, count in _runs(step.counts):
            slots = step.slots[rows]
            before = states[slots].masked_fill_(step.is_fresh[rows, None, None], 0.0)
            size = len(slots) * count
            inputs = torch.cat((before, x[first : first + size].view(len(slots), count, -1)), dim=1)
            out[first : first + size] = self._outputs(inputs, count).view(size, -1)
            states[slots] = inputs[:, count:]
            for row, num_tokens, entry in step.saves.tolist():
                if rows.start <= row < rows.stop:
                    states[entry] = inputs[row - rows.start, num_tokens : num_tokens + len(self.weight) - 1]
        return out

    def _outputs(self, inputs: Tensor, count: int) -> Tensor:
        """Return the outputs [rows, count, channels] of inputs [rows, width - 1 + count, channels]."""
        total = inputs[:, :count] * self.weight[0]
        for offset in range(1, len(self.weight)):
            total += inputs[:, offset : offset + count] * self.weight[offset]
        return total if self.bias is None else total + self.bias


def _runs(counts: tuple[int, ...]) -> Iterator[tuple[int, slice, int]]:
    """Yield (first token, rows, tokens of each row): the rows with one token together, the others one by one."""
    token = row = 0
    while row < len(counts):
        end = row + 1
        while counts[row] == 1 and end < len(counts) and counts[end] == 1:
            end += 1
        yield token, slice(row, end), counts[row]
        token, row = token + counts[row] * (end - row), end
