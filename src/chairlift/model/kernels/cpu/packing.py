"""Packer: packs weights into the kernels' layout (kernels.h), one after another as they are loaded."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from chairlift.model.device.huge_page_tensors import huge_pages
from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.kernels.cpu.library import PANEL
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.kernels.cpu.weight_kinds import (
    BLOCK_KINDS,
    CODE_LAYOUTS,
    DTYPES,
    INPUTS_PER_STEP,
    KINDS,
    SUPER_GROUPS,
    num_steps,
)

LAYOUT = 3
"""Version of the layout of packed weights. Files with another version are not read."""

HALF_PANEL, STEP_BYTES_PER_OUTPUT = PANEL // 2, 4
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
        segments: the library's views of the weight, with pointers into `memory`. Usually one; more, stacked by rows,
            where parts of the weight have different kinds.
        memory: for each segment its data, and the scales and minima of the quantized kinds.
    """

    segments: tuple[kernel_structs.Weight, ...]
    memory: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs."""
        return sum(segment.outputs for segment in self.segments), self.segments[0].inputs

    @property
    def struct(self) -> kernel_structs.Weight:
        """The only segment."""
        (only,) = self.segments
        return only


@dataclass(slots=True)
class Packer:
    """Packs weights into the layout of one kind, or of the kinds that they have in a file.

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
        kind = self.kind if kind is None else kind
        assert kind in KINDS.values(), f"numbers cannot be packed as kind {kind}, which takes blocks"
        packed = self.allocate([tuple(part.shape) for part in parts], [kind] * len(parts), gated=gated)
        weight = packed.struct
        # The library adds to these in each call: they are sums over all parts.
        errors = (ctypes.c_double * 2)()
        first = 0
        for part, placement in zip(parts, _placements(len(parts), gated), strict=True):
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

    def pack_blocks(self, parts: Sequence[BlockRows], *, gated: bool = False) -> tuple[PackedWeight, tuple[int, ...]]:
        """Pack quantized weights [O_i, I] as one, as pack() does, with the numbers that they have.

        Their types must be in BLOCK_KINDS and fits_segments().

        Returns the weight and, for each part, how many of its blocks have a scale that is infinite or not a number.
        Raises MemoryError or OSError if there is too little memory.
        """
        kinds = [BLOCK_KINDS[part.type.name] for part in parts]
        packed = self.allocate([part.shape for part in parts], kinds, gated=gated)
        damaged, segment, first = [], 0, 0
        for index, (part, placement) in enumerate(zip(parts, _placements(len(parts), gated), strict=True)):
            if index and kinds[index] != kinds[index - 1]:
                segment, first = segment + 1, 0
            rows = part.rows if part.rows.strides[1] == 1 else part.rows.copy()
            order = None if part.order is None else part.order.ctypes.data
            count: int = library.load().pack_blocks(
                self.pool.handle, ctypes.byref(packed.segments[segment]), rows.ctypes.data, rows.strides[0], order,
                part.shape[0], placement, first,
            )  # fmt: skip
            if count < 0:
                raise MemoryError("no memory to pack a weight")
            damaged.append(count)
            first += part.shape[0]
        return packed, tuple(damaged)

    def allocate(
        self, shapes: Sequence[tuple[int, ...]], kinds: Sequence[int], *, gated: bool
    ) -> PackedWeight:  # fmt: skip
        """Return a packed weight of zeros for parts of these shapes [O_i, I] and kinds."""
        segments, memory = [], []
        for kind, run in groupby(zip(kinds, shapes, strict=True), key=lambda each: each[0]):
            rows = [shape[0] for _, shape in run]
            outputs = 2 * -(-rows[0] // 16) * 16 if gated else sum(rows)  # 16 gates and 16 ups alternate
            struct, pieces = self._allocate(outputs, shapes[0][1], kind)
            segments.append(struct)
            memory += pieces
        return PackedWeight(tuple(segments), tuple(memory))

    def _allocate(self, outputs: int, inputs: int, kind: int) -> tuple[kernel_structs.Weight, list[Tensor]]:
        """Return a weight of one kind, and its memory."""
        panels, columns, steps = -(-outputs // PANEL), -(-outputs // PANEL) * PANEL, num_steps(inputs, kind)
        weight = kernel_structs.Weight(outputs, inputs, panels, steps, kind)
        sizes = [("data", steps * columns * STEP_BYTES_PER_OUTPUT)]
        if kind == library.INT8_CHANNEL:
            sizes.append(("scales", columns * 4))
        elif layout := CODE_LAYOUTS.get(kind):
            groups = steps // layout.bits
            factors = groups // SUPER_GROUPS if layout.has_super_scales else groups
            names = ["group_scales", "group_minima"] if layout.has_minima else ["group_scales"]
            sizes += [(name, columns * factors * 2) for name in names]
            if layout.has_super_scales:
                sizes.append(("small_scales", columns * groups * layout.scales))
                sizes += [("small_minima", columns * groups)] if layout.has_minima else []
        memory = []
        for name, size in sizes:
            memory.append(self._arena.allocate(size))
            setattr(weight, name, memory[-1].data_ptr())
        return weight, memory


def fits_segments(outputs: Sequence[int], types: Sequence[str], *, gated: bool) -> bool:
    """Return whether parts with these outputs and types of blocks can be packed as one weight."""
    if any(name not in BLOCK_KINDS for name in types):
        return False
    if gated:
        return len(set(types)) == 1
    # The kernels write half panels, so a segment that another one follows must end with one.
    first, ends = 0, []
    for index, count in enumerate(outputs[:-1]):
        first += count
        if types[index] != types[index + 1]:
            ends.append(first)
            first = 0
    return all(end % HALF_PANEL == 0 for end in ends)


def _placements(count: int, gated: bool) -> tuple[int, ...]:
    return (library.GATES, library.UPS) if gated else (library.STACKED,) * count


def padded_inputs(weight: PackedWeight) -> int:
    """Return the inputs of a weight, padded to whole steps and groups."""
    first = weight.segments[0]
    if layout := CODE_LAYOUTS.get(first.kind):
        return int(first.steps) // layout.bits * library.GROUP
    return int(first.steps) * INPUTS_PER_STEP[first.kind]


def packed_weight(weight: object) -> PackedWeight:
    """Return a weight of a model, which must be packed."""
    assert isinstance(weight, PackedWeight), "the native decoder needs packed weights"
    return weight


def row_quantization(weight: PackedWeight) -> int | None:
    """Return the kind in which rows are quantized for products with a weight; None if they are not quantized."""
    kind = int(weight.segments[0].kind)
    if kind in DTYPES:
        return None
    return library.INT8_GROUP if kind in CODE_LAYOUTS else kind  # all kinds with groups have the same rows


def stored_width(weight: PackedWeight) -> int:
    """Return the outputs that a product stores for a row: a segment ends with a whole panel if no other follows."""
    *before, last = weight.segments
    return int(sum(segment.outputs for segment in before) + last.panels * PANEL)


def gated_rows(gate_up: Tensor) -> Tensor:
    """Return gates and ups [2 I, ...] in the order of a gated pair's panels: 16 gates, 16 ups, and so on."""
    gates, ups = gate_up.chunk(2)
    padding = -len(gates) % 16
    pad = [0] * (2 * (gates.ndim - 1)) + [0, padding]
    runs = [torch.nn.functional.pad(each, pad).view(-1, 16, *gates.shape[1:]) for each in (gates, ups)]
    return torch.stack(runs, 1).flatten(0, 2)


def padded_bias(bias: Tensor, weight: PackedWeight, *, gated: bool) -> Tensor:
    """Return a bias [O] in float32 in the order of a weight's panels, with zeros to the end of the last one."""
    rows = gated_rows(bias) if gated else bias
    return torch.nn.functional.pad(rows.float(), (0, stored_width(weight) - len(rows)))
