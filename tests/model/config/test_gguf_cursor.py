"""GGUFCursor: values of every type; lengths and counts beyond the file are refused before anything is allocated."""

import math
import re
import struct
import tracemalloc
from pathlib import Path

import pytest

from chairlift.core.errors import ModelError
from chairlift.model.config import gguf_cursor
from chairlift.model.config.gguf_cursor import GGUFCursor, MetadataValue, shown_name
from support_gguf import ARRAY, BOOL, F32, F64, I8, I16, I32, I64, STRING, U8, U16, U32, U64, array, string

FILE = Path("folder/m.gguf")


def read(data: bytes) -> MetadataValue:
    cursor = GGUFCursor(FILE, data)
    value = cursor.value()
    assert cursor.offset == len(data)
    return value


@pytest.mark.parametrize(
    ("kind", "code", "value"),
    [
        (U8, "B", 255), (I8, "b", -128), (U16, "H", 65_535), (I16, "h", -32_768), (U32, "I", 2**32 - 1),
        (I32, "i", -(2**31)), (F32, "f", 0.5), (U64, "Q", 2**64 - 1), (I64, "q", -(2**63)), (F64, "d", 0.1),
        (F32, "f", -math.inf), (BOOL, "?", True), (BOOL, "?", False),
    ],
)  # fmt: skip
def test_a_number_and_an_array_of_it(kind: int, code: str, value: float) -> None:
    number = read(struct.pack(f"<I{code}", kind, value))
    assert number == value and type(number) is type(value)
    assert read(struct.pack("<I", ARRAY) + array(kind, 3, struct.pack(f"<3{code}", value, value, value))) == [value] * 3
    assert read(struct.pack("<I", ARRAY) + array(kind, 0, b"")) == []


def test_strings_and_arrays_of_strings_and_of_arrays() -> None:
    assert read(struct.pack("<I", STRING) + string("Grüße\0")) == "Grüße\0"
    assert read(struct.pack("<I", ARRAY) + array(STRING, 3, string("a") + string("") + string("▁b"))) == ["a", "", "▁b"]
    inner = array(ARRAY, 2, array(BOOL, 1, b"\1") + array(STRING, 0, b""))
    assert read(struct.pack("<I", ARRAY) + array(ARRAY, 1, inner)) == [[[True], []]]


INVALID = [
    (struct.pack("<IB", BOOL, 2), "the header has a bool of 2, which must be 0 or 1"),
    (struct.pack("<I", ARRAY) + array(BOOL, 3, b"\0\1\xff"), "the header has a bool of 255, which must be 0 or 1"),
    (struct.pack("<I", 13), "the header has a value of type 13, which GGUF does not define"),
    (struct.pack("<I", ARRAY) + array(99, 0, b""), "the header has a value of type 99"),
    (struct.pack("<I", STRING) + string(b"\xff"), "the header has a string that is not UTF-8"),
    (struct.pack("<I", STRING) + string(b"\xed\xa0\x80"), "the header has a string that is not UTF-8"),  # a surrogate
    (struct.pack("<I", ARRAY) + array(ARRAY, 1, array(ARRAY, 1, array(ARRAY, 1, array(U8, 0, b"")))),
     "the header has more than 3 arrays inside each other"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "problem"), INVALID)
def test_an_invalid_value_is_named(data: bytes, problem: str) -> None:
    with pytest.raises(ModelError, match=re.escape(f"{FILE} is not a valid GGUF file: {problem}")):
        read(data)


HUGE = [
    struct.pack("<IQ", STRING, 2**63), struct.pack("<IQ", STRING, 2**64 - 1), struct.pack("<IQ", STRING, 5) + b"four",
    *(struct.pack("<I", ARRAY) + array(kind, count, bytes(7)) for kind in range(14) for count in (8, 2**63, 2**64 - 1)),
]  # fmt: skip


@pytest.mark.parametrize("data", HUGE)
def test_a_length_beyond_the_file_is_refused_before_anything_is_allocated(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=rf"{FILE} is truncated or damaged: .* the file has {len(data)} bytes"):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_value_that_ends_too_early_is_refused_at_every_byte() -> None:
    for data in (
        struct.pack("<Id", F64, 1.0),
        struct.pack("<I", STRING) + string("abc"),
        struct.pack("<I", ARRAY) + array(STRING, 2, string("a") + string("bc")),
    ):
        for length in range(len(data)):
            with pytest.raises(ModelError, match="is truncated or damaged"):
                read(data[:length])


def test_the_length_of_an_array_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_cursor, "MAX_ARRAY_LENGTH", 3)
    assert read(struct.pack("<I", ARRAY) + array(U8, 3, bytes(3))) == [0, 0, 0]
    with pytest.raises(ModelError, match="the header has 4 elements, the limit is 3"):
        read(struct.pack("<I", ARRAY) + array(U8, 4, bytes(4)))


def test_a_name_in_a_message_is_short_and_printable() -> None:
    assert shown_name("blk.0.attn_q.weight") == "blk.0.attn_q.weight"
    assert shown_name("a\nb") == r"'a\nb'"
    assert shown_name("") == "''"
    assert shown_name("x" * 100) == "x" * 64 + "..."
