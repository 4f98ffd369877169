"""Int4Packer: keeps the 4-bit codes of a checkpoint for products on a GPU; other weights are dequantized."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.kernels.int4_linear import GROUP, Int4Weight
from chairlift.model.weights.gguf_blocks import group_codes
from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.parameter_loader import ParameterLoader, Part, unpacked

SCALE_DTYPES = {"Q4_0": torch.float16, "Q4_1": torch.float16, "Q4_K": torch.float32}
"""Types of blocks that are kept -> dtype that has their scales and minima exactly."""

CHUNK_ELEMENTS = 2**22
"""Codes that are unpacked at once."""


class Int4Packer:
    """A Pack (parameter_loader.py) to Int4Weight where all parts of a weight have 4-bit codes."""

    def __init__(self, device: torch.device, pack: Callable[[Tensor], Tensor]) -> None:
        """`device` gets the codes; `pack` returns the layout of a weight that is dequantized."""
        self._device, self._pack = device, pack
        self._num_kept = 0
        self._bytes = 0

    def __call__(self, parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> LinearWeight:
        """See Pack. Raises ModelError for a scale that is infinite or NaN."""
        stored = [each for each in (loader.stored(name) for name, _ in parts) if each is not None]
        types = [each.codes_type for each in stored if each.codes_type in SCALE_DTYPES]
        if len(types) < len(parts):
            return self._pack(unpacked(parts, loader, gated=gated))
        dtype = max((SCALE_DTYPES[str(name)] for name in types), key=lambda each: each.itemsize)
        weights = [_weight_of(each.codes(), dtype) for each in stored]
        for part, weight in zip(parts, weights, strict=True):
            if not (weight.scales.isfinite().all() and weight.minima.isfinite().all()):
                loader.refuse_damaged(*part)
        joined = Int4Weight(*(
            torch.cat([getattr(each, name) for each in weights]).to(self._device)
            for name in ("codes", "scales", "minima")
        ))  # fmt: skip
        self._num_kept += len(parts)
        self._bytes += joined.num_bytes
        return joined

    def report(self) -> str | None:
        """Return what was kept, for the startup report; None if nothing was."""
        return f"{self._num_kept} weights of 4 bits in {self._bytes / 2**20:.1f} MiB" if self._num_kept else None


def _weight_of(blocks: BlockRows, dtype: torch.dtype) -> Int4Weight:
    """Return a weight on the CPU, whose scales and minima have a dtype."""
    outputs, inputs = blocks.shape
    codes = np.empty((outputs, inputs // GROUP, GROUP // 2), np.uint8)
    scales, minima = (np.empty((outputs, inputs // GROUP), np.float32) for _ in range(2))
    step = max(1, CHUNK_ELEMENTS // inputs)
    for begin in range(0, outputs, step):
        own = slice(begin, begin + step)
        groups = group_codes(blocks.rows[own] if blocks.order is None else blocks.rows[blocks.order[own]], blocks.type)
        unpacked_codes = groups.codes.reshape(-1, inputs // GROUP, GROUP)
        codes[own] = unpacked_codes[..., : GROUP // 2] | unpacked_codes[..., GROUP // 2 :] << 4
        scales[own] = groups.scales
        minima[own] = -groups.scales * groups.offset if groups.minima is None else -groups.minima
    return Int4Weight(
        torch.from_numpy(codes).flatten(1), torch.from_numpy(scales).to(dtype), torch.from_numpy(minima).to(dtype)
    )
