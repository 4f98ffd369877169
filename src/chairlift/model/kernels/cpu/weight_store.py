"""WeightStore: packs the weights that a family asks for, or reads what an earlier start packed from a file.

    "CHAIRWGT" | bytes of the header | header: JSON | padding | pieces, each on a page boundary

The header names the layout and, of each weight in the order of asking, the parameters that it was packed from. The
file's own name says of which checkpoint it is. A file that does not fit, for whatever reason, is passed over and
written again; what does not fit in the middle is packed from the checkpoint. A file is renamed into its place when it
is whole.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from torch import Tensor

from chairlift.model.kernels.cpu.packing import LAYOUT, PackedWeight, Packer
from chairlift.model.loading.parameter_loader import Part, Read

log = logging.getLogger(__name__)

MAGIC = b"CHAIRWGT"
PAGE = 4096
READ_BYTES = 16 * 2**20
"""That one thread reads at a time."""

READERS = 4


class PackedEntry(msgspec.Struct, frozen=True):
    """One weight in the file.

    Attributes:
        parts: names and shapes of the parameters that it was packed from.
        gated: as it was packed.
        error: relative, squared; what rounding to int8 did.
        places: offset and bytes of each piece of its memory.
    """

    parts: tuple[Part, ...]
    gated: bool
    error: float | None
    places: tuple[tuple[int, int], ...]


class PackedHeader(msgspec.Struct, frozen=True):
    """What the file holds: its layout, the kind of its weights, and each of them."""

    layout: int
    kind: int
    entries: tuple[PackedEntry, ...]


class WeightStore:
    """Hands out packed weights; see `Pack` in take.py for how it is asked.

    Attributes:
        errors: names of parameters -> relative error of their int8 weights, in the order of asking.
    """

    def __init__(self, packer: Packer, path: Path | None = None) -> None:
        """`path` is the file; None for no file."""
        self.errors: dict[str, float] = {}
        self._packer = packer
        self._path = path
        self._made: list[tuple[tuple[Part, ...], bool, float | None, PackedWeight]] = []
        self._is_new = False
        self._file: BinaryIO | None = None
        self._entries: Sequence[PackedEntry] = ()
        if path is not None:
            self._open(path)

    def __call__(self, parts: Sequence[Part], read: Read, *, gated: bool) -> PackedWeight:
        """Return the weight that these parameters make. Raises MemoryError or OSError."""
        asked = tuple((name, tuple(shape)) for name, shape in parts)
        weight, error = self._read_next(asked, gated) or self._packed(asked, read, gated)
        if error is not None:
            self.errors[" + ".join(name for name, _ in asked)] = error**0.5
        if self._path is not None:
            self._made.append((asked, gated, error, weight))
        return weight

    def finish(self) -> None:
        """Write the file where anything was packed anew, and let go of it. What cannot be written is logged."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._path is not None and self._is_new:
            try:
                self._write(self._path)
            except OSError as error:
                log.warning("packed weights cannot be kept in %s: %s", self._path, error.strerror or error)
        self._made.clear()

    # -- from the checkpoint ---------------------------------------------------------------------------------------

    def _packed(self, parts: tuple[Part, ...], read: Read, gated: bool) -> tuple[PackedWeight, float | None]:
        self._is_new = True
        return self._packer.pack([read(name, shape) for name, shape in parts], gated=gated)

    # -- from the file ---------------------------------------------------------------------------------------------

    def _open(self, path: Path) -> None:
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("packed weights in %s cannot be read: %s", path, error.strerror or error)
            return
        try:
            header = _read_header(file)
            if (header.layout, header.kind) != (LAYOUT, self._packer.kind):
                raise ValueError("they are of another layout")
            self._entries = header.entries
            self._file = file
        except (OSError, ValueError, msgspec.DecodeError) as error:
            file.close()
            log.warning("packed weights in %s are passed over: %s", path, error)

    def _read_next(self, parts: tuple[Part, ...], gated: bool) -> tuple[PackedWeight, float | None] | None:
        """Read the next weight of the file, if it is the one that is asked for; if not, nothing more is read."""
        if self._file is None or self._is_new or len(self._made) >= len(self._entries):
            return None
        entry = self._entries[len(self._made)]
        weight = self._packer.room([shape for _, shape in parts], gated=gated)
        sizes = [piece.nbytes for piece in weight.memory]
        if (entry.parts, entry.gated) != (parts, gated) or [size for _, size in entry.places] != sizes:
            return None
        try:
            self._read(self._file, zip(weight.memory, entry.places, strict=True))
        except OSError as error:
            log.warning("packed weights in %s cannot be read: %s", self._path, error.strerror or error)
            return None
        return weight, entry.error

    def _read(self, file: BinaryIO, pieces: Iterator[tuple[Tensor, tuple[int, int]]]) -> None:
        """Read pieces into their memory, by several threads at once, because pages are made real meanwhile."""

        def one(target: memoryview, offset: int) -> None:
            while len(target):
                count = os.preadv(file.fileno(), [target], offset)
                if count == 0:
                    raise OSError("it ends too early")
                target, offset = target[count:], offset + count

        with ThreadPoolExecutor(min(READERS, len(self._packer.pool.cpus))) as readers:
            futures = [
                readers.submit(one, whole[begin : begin + READ_BYTES], offset + begin)
                for memory, (offset, size) in pieces
                for whole in [_bytes(memory)]
                for begin in range(0, size, READ_BYTES)
            ]
        for future in futures:
            future.result()

    # -- to the file -----------------------------------------------------------------------------------------------

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        header, begin = self._header()
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as file:
                file.write(MAGIC + len(header).to_bytes(8, "little") + header)
                file.seek(begin)
                for _, _, _, weight in self._made:
                    for piece in weight.memory:
                        file.write(_bytes(piece))
                        file.seek(_paged(file.tell()))
                file.truncate(_paged(file.tell()))
            unfinished.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                unfinished.unlink()

    def _header(self) -> tuple[bytes, int]:
        """Return the header, and the offset of the first piece: places are counted from there, then moved."""

        def made(begin: int) -> bytes:
            entries, offset = [], begin
            for parts, gated, error, weight in self._made:
                places = []
                for piece in weight.memory:
                    places.append((offset, piece.nbytes))
                    offset = _paged(offset + piece.nbytes)
                entries.append(PackedEntry(parts, gated, error, tuple(places)))
            return msgspec.json.encode(PackedHeader(LAYOUT, self._packer.kind, tuple(entries)))

        room = _paged(len(MAGIC) + 8 + 2 * len(made(0)))  # offsets become longer, by less than all that there is
        return made(room), room


def _read_header(file: BinaryIO) -> PackedHeader:
    start = file.read(len(MAGIC) + 8)
    length, size = int.from_bytes(start[len(MAGIC) :], "little"), os.fstat(file.fileno()).st_size
    if len(start) < len(MAGIC) + 8 or not start.startswith(MAGIC) or length > size:
        raise ValueError("this is no file of packed weights")
    header = msgspec.json.decode(file.read(length), type=PackedHeader)
    if any(offset + count > size for entry in header.entries for offset, count in entry.places):
        raise ValueError("it is truncated")
    return header


def _bytes(memory: Tensor) -> memoryview:
    return memoryview(cast("Any", memory.numpy()))


def _paged(offset: int) -> int:
    return -(-offset // PAGE) * PAGE
