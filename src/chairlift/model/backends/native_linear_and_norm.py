"""NativeLinear, NativeRMSNorm: single layers on the native kernels, in models whose other operations run in torch."""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import PackedWeight, Packer, gated_rows
from chairlift.model.kernels.cpu.threads import ThreadPool


class NativeLinear:
    """Multiplies rows by a packed weight [O, I] and adds the bias. A row has the same bits in every batch.

    Attributes:
        weight: the packed weight.
        outputs: O, or with an activation O / 2.
        error: relative rounding error of an int8 weight; None for another one.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, packer: Packer, instruction_set: str, activation: str | None = None
    ) -> None:
        """Pack weight [O, I] and keep bias [O]. Raises MemoryError or OSError.

        With an activation, one of library.ACTIVATIONS, the first half of the outputs are gates of the second: the
        result is activation(gates) * ups.
        """
        is_gated = activation is not None
        self.outputs = len(weight) // 2 if is_gated else len(weight)
        self.weight: PackedWeight
        self.weight, squared = packer.pack(weight.chunk(2) if is_gated else [weight], gated=is_gated)
        self.error = None if squared is None else squared**0.5
        columns = self.weight.struct.panels * library.PANEL
        self._width = columns // 2 if is_gated else columns
        if bias is not None:
            bias = gated_rows(bias.float()) if is_gated else bias.float()
            bias = functional.pad(bias, (0, columns - len(bias))).contiguous()
        self._bias = bias
        self._bias_address = None if bias is None else bias.data_ptr()
        self._is_gated = is_gated
        self._dtype = packer.row_dtype
        self._activation = 0 if activation is None else library.ACTIVATIONS[activation]
        self._struct = ctypes.byref(self.weight.struct)
        self._pool = packer.pool
        self._instruction_set = instruction_set.encode()
        self._multiply = library.load().multiply

    @property
    def has_bias(self) -> bool:
        """Whether a bias is added."""
        return self._bias is not None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product of x [..., I] as [..., outputs], in the packer's dtype of rows.

        Raises MemoryError or ValueError (another I).
        """
        rows = _rows(x, self.weight.struct.inputs, self._dtype)
        count, width = len(rows), self._width
        out = torch.empty(count, width, dtype=self._dtype, device="cpu")
        code = self._multiply(
            self._pool.handle, self._instruction_set, self._struct, self._bias_address, self._is_gated,
            self._activation, rows.data_ptr(), self._dtype == torch.float32, rows.stride(0), count, out.data_ptr(),
            width,
        )  # fmt: skip
        if code < 0:
            raise MemoryError("no memory for a linear layer")
        if width != self.outputs:
            out = out[:, : self.outputs].contiguous()
        return out.view(*x.shape[:-1], self.outputs)


class NativeRMSNorm:
    """The RMS norm of rows, in float32 and rounded once, with one factor for each column."""

    def __init__(
        self, factors: Tensor, eps: float, pool: ThreadPool, instruction_set: str, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """Store factors [H], the number under the root, and the dtype of the rows: bfloat16 or float32."""
        self._factors = factors.float().contiguous()
        self._eps = eps
        self._dtype = dtype
        self._pool = pool
        self._instruction_set = instruction_set.encode()
        self._rms_norm = library.load().rms_norm

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of x [..., H] in the dtype of rows. Raises MemoryError, and ValueError for another H."""
        rows = _rows(x, len(self._factors), self._dtype)
        count, width = rows.shape
        out = torch.empty(count, width, dtype=self._dtype, device="cpu")
        code = self._rms_norm(
            self._pool.handle, self._instruction_set, rows.data_ptr(), self._dtype == torch.float32, rows.stride(0),
            count, width, self._factors.data_ptr(), self._eps, out.data_ptr(), width,
        )  # fmt: skip
        if code < 0:
            raise MemoryError("no memory for a norm")
        return out.view(x.shape)


def _rows(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return x [..., width] as rows [N, width] of a dtype, whose columns are adjacent.

    Raises ValueError for another width: the library would read beyond the rows.
    """
    if x.shape[-1:] != (width,):
        given = x.shape[-1] if x.ndim else "no dimension"
        raise ValueError(f"the layer takes {width} inputs, and {given} are given")
    rows = x.reshape(-1, x.shape[-1])
    if rows.dtype is not dtype or rows.stride(1) != 1:
        rows = rows.to(dtype).contiguous()
    return rows
