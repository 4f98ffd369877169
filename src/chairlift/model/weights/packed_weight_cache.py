"""PackedWeightCache: packs the weights that an architecture requests, or reads them from an earlier start's file.

    "CHAIRWGT" | header size in bytes | header: JSON | padding | pieces, each on a page boundary

The header holds the version of the layout and, for each weight in the order of the requests, the parameters that it was
packed from. The name of the file identifies the checkpoint. An unreadable file, or one of another layout, is ignored
and written again. From the first weight that differs from the request on, weights are packed from the checkpoint. A
file gets its final name when it is complete.
"""

import contextlib
import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import msgspec
from torch import Tensor

from chairlift.model.kernels.cpu.packing import LAYOUT, PackedWeight, Packer
from chairlift.model.weights.parameter_loader import ParameterLoader, Part

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
        kinds: the kind of each part.
        gated: whether it is a gated pair.
        error: squared relative error of rounding; None without rounding.
        places: offset and size in bytes of each piece of its memory.
    """

    parts: tuple[Part, ...]
    kinds: tuple[int, ...]
    gated: bool
    error: float | None
    places: tuple[tuple[int, int], ...]


class PackedHeader(msgspec.Struct, frozen=True):
    """The file's header: the version of the layout, and the weights."""

    layout: int
    entries: tuple[PackedEntry, ...]


class Kinds(NamedTuple):
    """How a weight is packed.

    Attributes:
        of_parts: the kind of each part.
        types: the type of each part's codes, if they are packed as they are in the checkpoint (StoredWeight.codes);
            empty if the parts are packed from numbers.
    """

    of_parts: tuple[int, ...]
    types: tuple[str, ...] = ()


class ChooseKinds(Protocol):
    """Chooses how a weight is packed."""

    def __call__(self, parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> Kinds:
        """Return the kinds of a weight of these parameters; see Pack."""
        ...


@dataclass(frozen=True, slots=True)
class _Request:
    """A weight that was requested, and how it is packed."""

    parts: tuple[Part, ...]
    kinds: Kinds
    gated: bool


class PackedWeightCache:
    """Returns packed weights; implements `Pack` of weights/parameter_loader.py.

    Attributes:
        errors: names of parameters -> relative error of their rounded weight, in the order of the requests.
        sizes: types of codes that were kept -> how many numbers have them.
        num_bytes: memory of the weights.
        names: the parameters in it.
    """

    def __init__(self, packer: Packer, path: Path | None = None, choose: ChooseKinds | None = None) -> None:
        """Open the file `path`, if it exists; None stores no weights.

        `choose` chooses the kinds of weights; None is the packer's for all.
        """
        self.errors: dict[str, float] = {}
        self.sizes: Counter[str] = Counter()
        self.num_bytes = 0
        self.names: set[str] = set()
        self._packer = packer
        self._choose = choose or self._kind_of_packer
        self._path = path
        self._weights: list[tuple[_Request, float | None, PackedWeight]] = []
        self._is_new = False
        self._file: BinaryIO | None = None
        self._entries: Sequence[PackedEntry] = ()
        if path is not None:
            self._open(path)

    def __call__(self, parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> PackedWeight:
        """Return the packed weight of these parameters. Raises MemoryError or OSError, and as StoredWeight does."""
        names = tuple((name, tuple(shape)) for name, shape in parts)
        request = _Request(names, self._choose(names, loader, gated=gated), gated)
        weight, error = self._read_next(request) or self._pack(request, loader)
        if error is not None:
            self.errors[" + ".join(name for name, _ in names)] = error**0.5
        self.num_bytes += sum(piece.nbytes for piece in weight.memory)
        self.names.update(name for name, _ in names)
        for (_, shape), name in zip(names, request.kinds.types, strict=False):
            self.sizes[name] += math.prod(shape)
        if self._path is not None:
            self._weights.append((request, error, weight))
        return weight

    def _kind_of_packer(self, parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> Kinds:
        return Kinds((self._packer.kind,) * len(parts))

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

    def _pack(self, request: _Request, loader: ParameterLoader) -> tuple[PackedWeight, float | None]:
        self._is_new = True
        if not request.kinds.types:
            tensors = [loader.read(name, shape) for name, shape in request.parts]
            return self._packer.pack(tensors, gated=request.gated, kind=request.kinds.of_parts[0])
        stored = [loader.stored(name) for name, _ in request.parts]
        weight, damaged = self._packer.pack_blocks(
            [each.codes() for each in stored if each is not None], gated=request.gated
        )
        for (name, shape), count in zip(request.parts, damaged, strict=True):
            if count:
                loader.refuse_damaged(name, shape)
        return weight, None

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
            if header.layout != LAYOUT:
                raise ValueError("they have another layout")
            self._entries = header.entries
            self._file = file
        except (OSError, ValueError, msgspec.DecodeError) as error:
            file.close()
            log.warning("packed weights in %s are ignored: %s", path, error)

    def _read_next(self, request: _Request) -> tuple[PackedWeight, float | None] | None:
        """Read the next weight of the file if it is the requested one; return None for it and all later ones if not."""
        if self._file is None or self._is_new or len(self._weights) >= len(self._entries):
            return None
        entry = self._entries[len(self._weights)]
        if (entry.parts, entry.kinds, entry.gated) != (request.parts, request.kinds.of_parts, request.gated):
            return None
        shapes = [shape for _, shape in request.parts]
        weight = self._packer.allocate(shapes, entry.kinds, gated=request.gated)
        if [size for _, size in entry.places] != [piece.nbytes for piece in weight.memory]:
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
                for _, _, weight in self._weights:
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
            for request, error, weight in self._weights:
                places = []
                for piece in weight.memory:
                    places.append((offset, piece.nbytes))
                    offset = _page_aligned(offset + piece.nbytes)
                kinds = request.kinds.of_parts
                entries.append(PackedEntry(request.parts, kinds, request.gated, error, tuple(places)))
            return msgspec.json.encode(PackedHeader(LAYOUT, tuple(entries)))

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
