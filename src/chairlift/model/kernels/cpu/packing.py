"""Weights in the layout that the kernels multiply with (kernels.h), packed one after another as they are loaded."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.runner.host_memory import huge_pages

KINDS = {"none": library.BFLOAT16, "int8-channel": library.INT8_CHANNEL, "int8": library.INT8_GROUP}
"""What an option `quantization` may be -> a kind of weight."""

LAYOUT = 1
"""Counts how often the layout of packed weights has changed; files of another one are not read."""

CHUNK_BYTES = 64 * 2**20
LINE = 64


class Arena:
    """Memory for weights, on huge pages where the kernel gives them; a page is real once it is written to.

    Owns: chunks, which live as long as any tensor in them.
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        """Return zeros, uint8 [num_bytes], that begin on a cache line. Raises MemoryError or OSError."""
        size = -(-num_bytes // LINE) * LINE
        if size > len(self._left):
            self._left = huge_pages(max(size, CHUNK_BYTES))
        taken, self._left = self._left[:num_bytes], self._left[size:]
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight [outputs, inputs] in panels.

    Attributes:
        struct: for the library; it names the memory below.
        memory: data, scales.
    """

    struct: library.Weight
    memory: tuple[Tensor, ...]


@dataclass(slots=True)
class Packer:
    """Packs weights of bfloat16 into one kind.

    Attributes:
        pool: whose threads do it.
        kind: one of KINDS' values.
    """

    pool: ThreadPool
    kind: int
    _arena: Arena = field(default_factory=Arena)

    def pack(self, parts: Sequence[Tensor], *, gated: bool = False) -> tuple[PackedWeight, float | None]:
        """Pack bfloat16 weights [O_i, I] below one another; `gated`: the two, gates and ups, of a gated pair.

        Returns the weight and, for the kinds of int8, what rounding did: squared errors over squares.
        Raises MemoryError or OSError when there is not so much memory.
        """
        made = self.room([tuple(part.shape) for part in parts], gated=gated)
        weight = made.struct
        errors = (ctypes.c_double * 2)()
        first = 0
        placements = (library.GATES, library.UPS) if gated else (library.BELOW,) * len(parts)
        for part, placement in zip(parts, placements, strict=True):
            rows = part.to(torch.bfloat16).contiguous()
            done = library.load().pack(
                self.pool.handle, ctypes.byref(weight), rows.data_ptr(), len(rows), placement, first, errors
            )
            if done < 0:
                raise MemoryError("no memory to pack a weight")
            first += len(rows)
        if self.kind == library.BFLOAT16:
            return made, None
        return made, errors[0] / errors[1] if errors[1] else 0.0

    def room(self, shapes: Sequence[tuple[int, ...]], *, gated: bool) -> PackedWeight:
        """Return a packed weight of zeros, which weights of these shapes [O_i, I] fill."""
        inputs, outputs = shapes[0][1], sum(rows for rows, _ in shapes)
        if gated:  # whole runs of 16 gates beside 16 ups
            outputs = 2 * -(-shapes[0][0] // 16) * 16
        panels = -(-outputs // library.PANEL)
        per_step = 2 if self.kind == library.BFLOAT16 else 4
        unit = library.GROUP if self.kind == library.INT8_GROUP else per_step
        steps = -(-inputs // unit) * unit // per_step
        data = self._arena.take(panels * steps * library.PANEL * 4)
        memory: tuple[Tensor, ...] = (data,)
        scales, group_scales = None, None
        if self.kind == library.INT8_CHANNEL:
            memory = (data, self._arena.take(panels * library.PANEL * 4))
            scales = memory[1].data_ptr()
        elif self.kind == library.INT8_GROUP:
            memory = (data, self._arena.take(panels * library.PANEL * (steps * 4 // library.GROUP) * 2))
            group_scales = memory[1].data_ptr()
        weight = library.Weight(outputs, inputs, panels, steps, self.kind, data.data_ptr(), scales, group_scales)
        return PackedWeight(weight, memory)
