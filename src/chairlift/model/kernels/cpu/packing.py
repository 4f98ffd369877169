"""Packer: packs weights into the kernels' layout (kernels.h), one after another as they are loaded."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chairlift.model.device.huge_page_tensors import huge_pages
from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.kernels.cpu.threads import ThreadPool

KINDS = {
    "bfloat16": library.BFLOAT16, "float16": library.FLOAT16, "float32": library.FLOAT32,
    "int8-channel": library.INT8_CHANNEL, "int8": library.INT8_GROUP, "int4": library.INT4_GROUP,
}  # fmt: skip
"""Value of the option `quantization`, or a dtype without quantization -> kind of weight."""

DTYPES = {library.BFLOAT16: torch.bfloat16, library.FLOAT16: torch.float16, library.FLOAT32: torch.float32}
"""Kind of weight -> dtype of its numbers. The quantized kinds are rounded from bfloat16 or float32."""

INPUTS_PER_STEP = {
    library.BFLOAT16: 2, library.FLOAT16: 2, library.FLOAT32: 1, library.INT8_CHANNEL: 4, library.INT8_GROUP: 4,
    library.INT4_GROUP: 8,
}  # fmt: skip
"""Kind of weight -> inputs in a step of a panel, which has four bytes for each output."""

GROUP_KINDS = (library.INT8_GROUP, library.INT4_GROUP)
"""Kinds with a scale for each group of inputs."""

LAYOUT = 1
"""Version of the layout of packed weights. Files with another version are not read."""

CHUNK_BYTES = 64 * 2**20
LINE = 64


class Arena:
    """Memory for weights, on huge pages if the operating system provides them. A page is allocated when first written.

    Owns: chunks, each of which lives as long as a tensor in it.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def allocate(self, num_bytes: int) -> Tensor:
        """Return zeros, uint8 [num_bytes], aligned to a cache line. Raises MemoryError or OSError."""
        size = -(-num_bytes // LINE) * LINE
        if size > len(self._free):
            self._free = huge_pages(max(size, CHUNK_BYTES))
        allocated, self._free = self._free[:num_bytes], self._free[size:]
        return allocated


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight [outputs, inputs] in panels.

    Attributes:
        struct: the library's view of the weight, with pointers into `memory`.
        memory: data, and scales and minima of the quantized kinds.
    """

    struct: kernel_structs.Weight
    memory: tuple[Tensor, ...]


@dataclass(slots=True)
class Packer:
    """Packs weights into the layout of one kind.

    Attributes:
        pool: the threads that pack.
        kind: one of KINDS' values.
        row_dtype: dtype of the rows that are multiplied by the weights.
    """

    pool: ThreadPool
    kind: int
    row_dtype: torch.dtype = torch.bfloat16
    _arena: Arena = field(default_factory=Arena)

    def pack(
        self, parts: Sequence[Tensor], *, gated: bool = False, kind: int | None = None
    ) -> tuple[PackedWeight, float | None]:  # fmt: skip
        """Pack weights [O_i, I] as one, stacked by rows; `gated`: the parts are gates and ups of a gated pair.

        `kind` is another one than the packer's for this weight.

        Returns the weight and, for the quantized kinds, the relative rounding error: squared errors over squares.
        Raises MemoryError or OSError if there is too little memory.
        """
        packed = self.allocate([tuple(part.shape) for part in parts], gated=gated, kind=kind)
        weight, kind = packed.struct, packed.struct.kind
        # The library adds to these in each call: they are sums over all parts.
        errors = (ctypes.c_double * 2)()
        first = 0
        placements = (library.GATES, library.UPS) if gated else (library.STACKED,) * len(parts)
        for part, placement in zip(parts, placements, strict=True):
            rows = part.to(DTYPES.get(kind, self.row_dtype)).contiguous()
            code = library.load().pack(
                self.pool.handle, ctypes.byref(weight), rows.data_ptr(), rows.dtype == torch.float32, len(rows),
                placement, first, errors,
            )  # fmt: skip
            if code < 0:
                raise MemoryError("no memory to pack a weight")
            first += len(rows)
        if kind in DTYPES:
            return packed, None
        return packed, errors[0] / errors[1] if errors[1] else 0.0

    def allocate(
        self, shapes: Sequence[tuple[int, ...]], *, gated: bool, kind: int | None = None
    ) -> PackedWeight:  # fmt: skip
        """Return a packed weight of zeros for parts of these shapes [O_i, I]; `kind` as for pack."""
        kind = self.kind if kind is None else kind
        inputs, outputs = shapes[0][1], sum(rows for rows, _ in shapes)
        if gated:  # 16 gates and 16 ups alternate
            outputs = 2 * -(-shapes[0][0] // 16) * 16
        panels = -(-outputs // library.PANEL)
        per_step = INPUTS_PER_STEP[kind]
        # Inputs are padded to whole steps, or to whole groups, each of which has a scale.
        unit = library.GROUP if kind in GROUP_KINDS else per_step
        steps = -(-inputs // unit) * unit // per_step
        data = self._arena.allocate(panels * steps * library.PANEL * 4)
        memory: tuple[Tensor, ...] = (data,)
        scales, group_scales, minima = None, None, None
        if kind == library.INT8_CHANNEL:
            memory = (data, self._arena.allocate(panels * library.PANEL * 4))
            scales = memory[1].data_ptr()
        elif kind in GROUP_KINDS:
            size = panels * library.PANEL * (steps * per_step // library.GROUP) * 2
            memory = (data, *(self._arena.allocate(size) for _ in range(1 + (kind == library.INT4_GROUP))))
            group_scales = memory[1].data_ptr()
            minima = memory[2].data_ptr() if kind == library.INT4_GROUP else None
        weight = kernel_structs.Weight(
            outputs, inputs, panels, steps, kind, data.data_ptr(), scales, group_scales, minima
        )
        return PackedWeight(weight, memory)


def padded_inputs(weight: PackedWeight) -> int:
    """Return the inputs of a weight, padded to whole steps and groups."""
    return int(weight.struct.steps) * INPUTS_PER_STEP[weight.struct.kind]


def gated_rows(gate_up: Tensor) -> Tensor:
    """Return gates and ups [2 I, ...] in the order of a gated pair's panels: 16 gates, 16 ups, and so on."""
    gates, ups = gate_up.chunk(2)
    padding = -len(gates) % 16
    pad = [0] * (2 * (gates.ndim - 1)) + [0, padding]
    runs = [torch.nn.functional.pad(each, pad).view(-1, 16, *gates.shape[1:]) for each in (gates, ups)]
    return torch.stack(runs, 1).flatten(0, 2)
