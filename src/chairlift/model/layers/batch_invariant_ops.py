"""BatchInvariantOps: TritonOps whose matrix products give a row the same bits in every batch."""

from torch import Tensor

from chairlift.model.kernels.cuda import linear_kernel
from chairlift.model.layers.triton_ops import TritonOps


class BatchInvariantOps(TritonOps):
    """Ops on a GPU for the option `deterministic`, or on a CPU by Triton's interpreter; in one of its dtypes.

    Norms, gated activations, rotations and soft caps are those of TritonOps, which compute each row alone.
    """

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        return linear_kernel.linear(x if x.stride(-1) == 1 else x.contiguous(), weight, bias)
