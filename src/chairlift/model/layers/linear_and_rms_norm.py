"""Linear, RMSNorm: the projections and norms of a decoder."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.layers.ops import Ops
from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.parameter_loader import ParameterLoader


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection, or several of one input stacked by rows.

    Attributes:
        weight: [O, I] in any layout.
        bias: [O], or None.
        outputs: name of each projection, without ".weight", -> its rows, in the order of the rows of the weight.
    """

    weight: LinearWeight
    bias: Tensor | None
    outputs: Mapping[str, int]

    @classmethod
    def load(
        cls, loader: ParameterLoader, outputs: Mapping[str, int], inputs: int, bias: bool, *, gated: bool = False
    ) -> "Linear":
        """Load name.weight and, with `bias`, name.bias of each name; `outputs` maps names to their rows."""
        weight = loader.linear_weight(
            [(f"{name}.weight", (rows, inputs)) for name, rows in outputs.items()], gated=gated
        )
        biases = [(f"{name}.bias", (rows,)) for name, rows in outputs.items()]
        return cls(weight, loader.concat(biases) if bias else None, dict(outputs))

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """Project x [T, I] to [T, O]."""
        return ops.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """A norm over the last axis.

    Attributes:
        weight: [H], or [heads, H] where heads have their own weights; for the kind in
            float32 at least float32, with the offset added.
        eps: added to the mean square.
        in_float32: whether the norm is Gemma's or Llama's kind (ops.py).
    """

    weight: Tensor
    eps: float
    in_float32: bool = False

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, size: int, config: DecoderConfig) -> "RMSNorm":
        """Load name.weight."""
        weight = loader(f"{name}.weight", (size,))
        if config.norm_offset:
            return cls(config.norm_offset + weight.float(), config.norm_eps, in_float32=True)
        if config.norm_in_float32:
            kind = torch.float32 if config.has_float32_norms else torch.promote_types(weight.dtype, torch.float32)
            wide = weight.to(kind)
            return cls(wide, config.norm_eps, in_float32=True)
        return cls(weight, config.norm_eps)

    @classmethod
    def without_weight(cls, size: int, eps: float, device: torch.device) -> "RMSNorm":
        """Return a norm that only divides by the root mean square, in float32."""
        return cls(torch.ones(size, dtype=torch.float32, device=device), eps, in_float32=True)

    def concat_heads(self, other: "RMSNorm", heads: int, other_heads: int) -> "RMSNorm":
        """Return the norm of `heads` heads with this weight [H], followed by `other_heads` with the other's weight."""
        weights = (self.weight.expand(heads, -1), other.weight.expand(other_heads, -1))
        return RMSNorm(torch.cat(weights), self.eps, self.in_float32)

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """Normalise x [..., H]."""
        norm = ops.rms_norm_float32 if self.in_float32 else ops.rms_norm
        return norm(x, self.weight, self.eps)

    def of_sum(self, x: Tensor, update: Tensor | None, ops: Ops) -> tuple[Tensor, Tensor]:
        """Return x + update [T, H], or x if update is None, and its norm."""
        if update is None:
            return x, self(x, ops)
        norm = ops.add_rms_norm_float32 if self.in_float32 else ops.add_rms_norm
        return norm(x, update, self.weight, self.eps)
