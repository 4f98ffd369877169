"""GGUFCursor: reads the numbers, strings and arrays of a GGUF file's header one after another. Imports no torch.

    string   u64 length in bytes, UTF-8
    array    u32 type of the elements, u64 count, the elements
    value    u32 type, then a number, a bool of one byte, a string or an array

All numbers are little-endian. Each length and count is compared with the size of the file before its value is read, so
that a damaged file cannot make the reader allocate more memory than a small multiple of the file's size.
"""

import mmap
import struct
from pathlib import Path

from chairlift.core.errors import ModelError

MetadataValue = int | float | bool | str | list["MetadataValue"]

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> its code in struct; a bool (7) is a byte."""

BOOL, STRING, ARRAY = 7, 8, 9
MAX_ARRAY_DEPTH = 3
"""Arrays inside each other; models have arrays of numbers and strings only, so 1."""
MAX_ARRAY_LENGTH = 1 << 24
"""Elements of an array, which bounds the memory of the list; the merges of large vocabularies are below 2**20."""
MAX_SHOWN_NAME = 64
"""Characters of a name that an error message shows."""

_MIN_BYTES = {STRING: 8, ARRAY: 12} | {kind: struct.calcsize(f"<{code}") for kind, code in NUMBERS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class GGUFCursor:
    """A position in a mapped file, which each read moves on.

    Every method raises ModelError, with the file's name, where the file ends too early or has an invalid value.

    Attributes:
        size: bytes of the file.
        offset: the position in bytes.
        place: what is being read, for error messages.
    """

    def __init__(self, file: Path, data: mmap.mmap | bytes) -> None:
        self.file = file
        self.size = len(data)
        self.offset = 0
        self.place = "the header"
        self._data = data

    def u32(self) -> int:
        """Read an unsigned integer of 4 bytes."""
        value: int = _U32.unpack_from(self._data, self._take(4))[0]
        return value

    def u64(self) -> int:
        """Read an unsigned integer of 8 bytes."""
        value: int = _U64.unpack_from(self._data, self._take(8))[0]
        return value

    def string(self) -> str:
        """Read a string."""
        length = self.u64()
        begin = self._take(length)
        try:
            return self._data[begin : begin + length].decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{self.place} has a string that is not UTF-8") from error

    def value(self) -> MetadataValue:
        """Read the type of a value and the value."""
        return self._value_of(self.u32(), depth=0)

    def error(self, problem: str) -> ModelError:
        """Return the error for invalid content."""
        return ModelError(f"{self.file} is not a valid GGUF file: {problem}", file=str(self.file))

    def truncated(self, problem: str) -> ModelError:
        """Return the error for a length or a count that exceeds the file."""
        message = f"{self.file} is truncated or damaged: {problem}, and the file has {self.size} bytes"
        return ModelError(message, file=str(self.file), size=self.size)

    def check_count(self, count: int, min_bytes: int, what: str) -> None:
        """Raise ModelError if `count` things of at least `min_bytes` bytes exceed the rest of the file."""
        if count * min_bytes > self.size - self.offset:
            raise self.truncated(f"{self.place} announces {count} {what}, at least {count * min_bytes} bytes")

    def _take(self, num_bytes: int) -> int:
        """Return the position and move it on. Raises ModelError if the file ends before."""
        begin = self.offset
        if num_bytes > self.size - begin:
            raise self.truncated(f"{self.place} goes on to byte {begin + num_bytes}")
        self.offset = begin + num_bytes
        return begin

    def _value_of(self, kind: int, depth: int) -> MetadataValue:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self._array(depth + 1)
        return self._numbers(kind, 1)[0]

    def _array(self, depth: int) -> list[MetadataValue]:
        if depth > MAX_ARRAY_DEPTH:
            raise self.error(f"{self.place} has more than {MAX_ARRAY_DEPTH} arrays inside each other")
        kind, count = self.u32(), self.u64()
        self.check_count(count, _MIN_BYTES.get(kind, 1), "elements")
        if count > MAX_ARRAY_LENGTH:
            raise self.error(f"{self.place} has {count} elements, the limit is {MAX_ARRAY_LENGTH}")
        if kind in (STRING, ARRAY):
            return [self._value_of(kind, depth) for _ in range(count)]
        return self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> list[MetadataValue]:
        if kind not in NUMBERS:
            raise self.error(f"{self.place} has a value of type {kind}, which GGUF does not define")
        values = struct.unpack_from(f"<{count}{NUMBERS[kind]}", self._data, self._take(count * _MIN_BYTES[kind]))
        if kind != BOOL:
            return list(values)
        if max(values, default=0) > 1:
            raise self.error(f"{self.place} has a bool of {max(values)}, which must be 0 or 1")
        return [value == 1 for value in values]


def shown_name(name: str) -> str:
    """Return a name from a file for an error message: shortened, and quoted if it has unprintable characters."""
    short = name if len(name) <= MAX_SHOWN_NAME else f"{name[:MAX_SHOWN_NAME]}..."
    return short if short.isprintable() and short else repr(short)
