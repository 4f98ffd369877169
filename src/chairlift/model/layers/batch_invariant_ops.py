"""BatchInvariantOps: TritonOps whose matrix products give a row the same bits in every batch."""

from collections.abc import Mapping

from torch import Tensor

from chairlift.model.kernels.cuda import batch_invariant_linear_kernel, float8_kernels
from chairlift.model.kernels.float8_linear import Float8Weight
from chairlift.model.kernels.int4_linear import Int4Weight
from chairlift.model.layers.ops import Product
from chairlift.model.layers.triton_ops import TritonOps, dense_rows, int4_product


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See Product (ops.py)."""
    return batch_invariant_linear_kernel.linear(dense_rows(x), weight, bias)


def _float8_product(x: Tensor, weight: Float8Weight, bias: Tensor | None) -> Tensor:
    """See Product (ops.py)."""
    return float8_kernels.multiply(*float8_kernels.quantize_rows(dense_rows(x)), weight, bias, x.dtype)


class BatchInvariantOps(TritonOps):
    """Ops on a GPU for the option `deterministic`, or on a CPU by Triton's interpreter; in one of its dtypes.

    Norms, gated activations, rotations and soft caps are those of TritonOps, which compute each row alone. Products are
    not inherited: each must compute a row in the same way in every batch.
    """

    products: Mapping[type, Product] = {
        Tensor: _product, Float8Weight: _float8_product, Int4Weight: int4_product,
    }  # fmt: skip
