"""PackedWeightCache: packs the weights that an architecture requests, or reads them from an earlier start's file.

    "CHAIRWGT" | header size in bytes | header: JSON | padding | pieces, each on a page boundary

The header holds the version of the layout and, for each weight in the order of the requests, the parameters that it was
packed from. The name of the file identifies the checkpoint. An unreadable file, or one of another layout, is ignored
and written again. From the first weight that differs from the request on, weights are packed from the checkpoint. A
file gets its final name when it is complete.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from torch import Tensor

from chairlift.model.kernels.cpu.packing import LAYOUT, PackedWeight, Packer
from chairlift.model.weights.parameter_loader import Part, Read

log = logging.getLogger(__name__)

MAGIC = b"CHAIRWGT"
PAGE = 4096
READ_BYTES = 16 * 2**20
"""Bytes that one thread reads at a time."""

MAX_READ_THREADS = 4


class PackedEntry(msgspec.Struct, frozen=True):
    """One weight in the file.

    Attributes:
        parts: names and shapes of the parameters that it was packed from.
        gated: whether it is a gated pair.
        error: squared relative error of rounding to int8; None without rounding.
        places: offset and size in bytes of each piece of its memory.
    """

    parts: tuple[Part, ...]
    gated: bool
    error: float | None
    places: tuple[tuple[int, int], ...]


class PackedHeader(msgspec.Struct, frozen=True):
    """The file's header: the version of the layout, the kind of the weights, and the weights."""

    layout: int
    kind: int
    entries: tuple[PackedEntry, ...]


class PackedWeightCache:
    """Returns packed weights; implements `Pack` of weights/parameter_loader.py.

    Attributes:
        errors: names of parameters -> relative error of their int8 weight, in the order of the requests.
    """

    def __init__(
        self, packer: Packer, path: Path | None = None, kind_of: Callable[[Sequence[Part]], int] | None = None
    ) -> None:  # fmt: skip
        """Open the file `path`, if it exists; None stores no weights.

        `kind_of` returns the kind of a weight of these parameters; None is the packer's for all.
        """
        self.errors: dict[str, float] = {}
        self._packer = packer
        self._kind_of = kind_of or (lambda _: packer.kind)
        self._path = path
        self._weights: list[tuple[tuple[Part, ...], bool, float | None, PackedWeight]] = []
        self._is_new = False
        self._file: BinaryIO | None = None
        self._entries: Sequence[PackedEntry] = ()
        if path is not None:
            self._open(path)

    def __call__(self, parts: Sequence[Part], read: Read, *, gated: bool) -> PackedWeight:
        """Return the packed weight of these parameters. Raises MemoryError or OSError."""
        requested = tuple((name, tuple(shape)) for name, shape in parts)
        weight, error = self._read_next(requested, gated) or self._pack(requested, read, gated)
        if error is not None:
            self.errors[" + ".join(name for name, _ in requested)] = error**0.5
        if self._path is not None:
            self._weights.append((requested, gated, error, weight))
        return weight

    def finish(self) -> None:
        """Close the file, and write it again if a weight was packed. An error of writing is logged."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._path is not None and self._is_new:
            try:
                self._write(self._path)
            except OSError as error:
                log.warning("packed weights cannot be written to %s: %s", self._path, error.strerror or error)
        self._weights.clear()

    # -- from the checkpoint ---------------------------------------------------------------------------------------

    def _pack(self, parts: tuple[Part, ...], read: Read, gated: bool) -> tuple[PackedWeight, float | None]:
        self._is_new = True
        tensors = [read(name, shape) for name, shape in parts]
        return self._packer.pack(tensors, gated=gated, kind=self._kind_of(parts))

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
                raise ValueError("they have another layout")
            self._entries = header.entries
            self._file = file
        except (OSError, ValueError, msgspec.DecodeError) as error:
            file.close()
            log.warning("packed weights in %s are ignored: %s", path, error)

    def _read_next(self, parts: tuple[Part, ...], gated: bool) -> tuple[PackedWeight, float | None] | None:
        """Read the next weight of the file if it is the requested one; return None for it and all later ones if not."""
        if self._file is None or self._is_new or len(self._weights) >= len(self._entries):
            return None
        entry = self._entries[len(self._weights)]
        kinds = [self._kind_of(parts)] * len(parts)
        weight = self._packer.allocate([shape for _, shape in parts], kinds, gated=gated)
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
        """Read pieces into their memory, with several threads because reading also allocates the pages."""

        def read_range(target: memoryview, offset: int) -> None:
            while len(target):
                count = os.preadv(file.fileno(), [target], offset)
                if count == 0:
                    raise OSError("the file ends too early")
                target, offset = target[count:], offset + count

        with ThreadPoolExecutor(min(MAX_READ_THREADS, len(self._packer.pool.cpus))) as readers:
            futures = [
                readers.submit(read_range, whole[begin : begin + READ_BYTES], offset + begin)
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
                for _, _, _, weight in self._weights:
                    for piece in weight.memory:
                        file.write(_bytes(piece))
                        file.seek(_page_aligned(file.tell()))
                file.truncate(_page_aligned(file.tell()))
            unfinished.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                unfinished.unlink()

    def _header(self) -> tuple[bytes, int]:
        """Return the header and the offset of the first piece, which depends on the size of the header."""

        def encode(begin: int) -> bytes:
            entries, offset = [], begin
            for parts, gated, error, weight in self._weights:
                places = []
                for piece in weight.memory:
                    places.append((offset, piece.nbytes))
                    offset = _page_aligned(offset + piece.nbytes)
                entries.append(PackedEntry(parts, gated, error, tuple(places)))
            return msgspec.json.encode(PackedHeader(LAYOUT, self._packer.kind, tuple(entries)))

        # Larger offsets make the header longer, but not twice as long.
        begin = _page_aligned(len(MAGIC) + 8 + 2 * len(encode(0)))
        return encode(begin), begin


def _read_header(file: BinaryIO) -> PackedHeader:
    start = file.read(len(MAGIC) + 8)
    length, size = int.from_bytes(start[len(MAGIC) :], "little"), os.fstat(file.fileno()).st_size
    if len(start) < len(MAGIC) + 8 or not start.startswith(MAGIC) or length > size:
        raise ValueError("it is not a file of packed weights")
    header = msgspec.json.decode(file.read(length), type=PackedHeader)
    if any(offset + count > size for entry in header.entries for offset, count in entry.places):
        raise ValueError("it is truncated")
    return header


def _bytes(memory: Tensor) -> memoryview:
    return memoryview(cast("Any", memory.numpy()))


def _page_aligned(offset: int) -> int:
    return -(-offset // PAGE) * PAGE
