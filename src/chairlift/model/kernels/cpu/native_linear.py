"""NativeLinear: a linear layer on the native kernels, for modules that run in torch otherwise."""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import PackedWeight, Packer


class NativeLinear:
    """Multiplies bfloat16 rows by a packed weight [O, I] and adds the bias. A row has the same bits in every batch.

    Attributes:
        weight: the packed weight.
        outputs: O.
        error: relative rounding error of an int8 weight; None for bfloat16.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packer: Packer, instruction_set: str) -> None:
        """Pack weight [O, I] and keep bias [O]. Raises MemoryError or OSError."""
        self.outputs = len(weight)
        self.weight: PackedWeight
        self.weight, squared = packer.pack([weight])
        self.error = None if squared is None else squared**0.5
        self._width = self.weight.struct.panels * library.PANEL
        self._bias = None if bias is None else functional.pad(bias.float(), (0, self._width - len(bias))).contiguous()
        self._bias_address = None if self._bias is None else self._bias.data_ptr()
        self._struct = ctypes.byref(self.weight.struct)
        self._pool = packer.pool
        self._instruction_set = instruction_set.encode()
        self._multiply = library.load().multiply

    @property
    def has_bias(self) -> bool:
        """Whether a bias is added."""
        return self._bias is not None

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [..., I] times the transpose of the weight, plus the bias: bfloat16 [..., O]. Raises MemoryError."""
        rows = x.reshape(-1, x.shape[-1])
        if rows.dtype is not torch.bfloat16 or rows.stride(1) != 1:
            rows = rows.to(torch.bfloat16).contiguous()
        out = torch.empty(len(rows), self._width, dtype=torch.bfloat16, device="cpu")
        code = self._multiply(
            self._pool.handle, self._instruction_set, self._struct, self._bias_address, rows.data_ptr(),
            rows.stride(0), len(rows), out.data_ptr(), self._width,
        )  # fmt: skip
        if code < 0:
            raise MemoryError("no memory for a linear layer")
        if self._width != self.outputs:
            out = out[:, : self.outputs].contiguous()
        return out.view(*x.shape[:-1], self.outputs)
