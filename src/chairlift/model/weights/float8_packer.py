"""Float8Packer: quantizes the weights of a decoder's layers to 8-bit floats, one after another as they are loaded."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chairlift.model.device.dtypes import FLOAT8_MULTIPLE
from chairlift.model.device.kv_dtype import FLOAT8
from chairlift.model.kernels.float8_linear import Float8Weight, quantize_rows
from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.parameter_loader import ParameterLoader, Part, Read, unpacked

LAYERS = "model.layers."
"""Beginning of the names of weights that are quantized; the embedding table and the lm_head have others."""

CHUNK_ELEMENTS = 2**24
"""Elements that are quantized at once, in float32: so much memory is needed beside the weights while they load."""


def takes_float8(parts: Sequence[Part]) -> bool:
    """Return whether weights [O_i, I], stacked by rows, become 8-bit floats: those of layers, of sizes that fit."""
    if not all(name.startswith(LAYERS) and len(shape) == 2 for name, shape in parts):
        return False
    outputs, inputs = sum(shape[0] for _, shape in parts), parts[0][1][1]
    return outputs % FLOAT8_MULTIPLE == 0 and inputs % FLOAT8_MULTIPLE == 0


class Float8Packer:
    """A Pack (parameter_loader.py) to Float8Weight; weights that are not a layer's or do not fit stay as they are."""

    def __init__(self, pack: Callable[[Tensor], Tensor]) -> None:
        """`pack` returns the layout of a weight that stays as it is."""
        self._pack = pack
        self._num_float8 = 0
        self._bytes = 0
        self._misfits: list[str] = []

    def __call__(self, parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> LinearWeight:
        """See Pack; each part is read, quantized and freed before the next is read."""
        if not takes_float8(parts):
            self._misfits += [name.removesuffix(".weight") for name, _ in parts if name.startswith(LAYERS)]
            return self._pack(unpacked(parts, loader, gated=gated))
        weight = quantize_parts(parts, loader.read)
        self._num_float8 += len(parts)
        self._bytes += weight.num_bytes
        return weight

    def report(self) -> str:
        """Return what was quantized, for the startup report."""
        text = f"fp8 (e4m3), {self._num_float8} weights of layers in {self._bytes / 2**20:.1f} MiB"
        if not self._misfits:
            return text
        return (
            f"{text}; not quantized, as a size is no multiple of {FLOAT8_MULTIPLE}: {len(self._misfits)} weights, "
            f"{self._misfits[0]}{', ..' if len(self._misfits) > 1 else ''}"
        )


def quantize_parts(parts: Sequence[Part], read: Read) -> Float8Weight:
    """Return weights [O_i, I] as one of 8-bit floats, stacked by rows."""
    outputs, inputs = sum(shape[0] for _, shape in parts), parts[0][1][1]
    values, scales = torch.empty(0), torch.empty(0)
    begin, step = 0, max(1, CHUNK_ELEMENTS // inputs)
    for name, shape in parts:
        part = read(name, shape)
        if not begin:
            values = torch.empty(outputs, inputs, dtype=FLOAT8, device=part.device)
            scales = torch.empty(outputs, dtype=torch.float32, device=part.device)
        for rows in torch.split(part, step):
            end = begin + len(rows)
            values[begin:end], scales[begin:end] = quantize_rows(rows)
            begin = end
    return Float8Weight(values, scales)
