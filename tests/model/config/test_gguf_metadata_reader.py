"""GGUFMetadataReader: types, ranges and fallbacks, and errors that name the file and the key."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.gguf_metadata_reader import GGUFMetadataReader, shortest_float32

WRONG: dict[str, tuple[Callable[[GGUFMetadataReader], object], tuple[Any, ...]]] = {
    "text": (lambda read: read.text("key"), (3, None, True, ["a"], b"a")),
    "text_or": (lambda read: read.text_or("key", "none"), (3, None, [])),
    "flag_or": (lambda read: read.flag_or("key", True), ("true", None, 2, 1.0, [True])),
    "size": (lambda read: read.size("key"), ("3", None, True, 3.0, 0, -1, 2**31, 10**400, [3])),
    "size_or": (lambda read: read.size_or("key", 3), ("3", None, False, 0)),
    "count_or_none": (lambda read: read.count_or_none("key"), ("3", None, True, -1, 2**32, [0])),
    "layer_size": (lambda read: read.layer_size("key", 2), ("3", None, True, 0, [], [3], [3, "3"], [0, 0], [[3], 3])),
    "layer_flags": (lambda read: read.layer_flags("key", 2), (True, None, [True], [True, 2], ["true", True])),
    "list_length": (lambda read: read.list_length("key"), (3, None, "ab", [], {})),
    "number": (lambda read: read.number("key"), ("1", None, True, 0, 0.0, -1.0, float("nan"), float("inf"), 10**400)),
    "number_or": (lambda read: read.number_or("key", 1.0), ("1", None, True, 0, -1, 1e300, [1.0])),
    "number_or_zero": (lambda read: read.number_or_zero("key"), ("1", None, True, -1, 1e300, -1e-9)),
}


def of(value: Any) -> GGUFMetadataReader:
    return GGUFMetadataReader({"llama.key": value}, "llama", "a.gguf")


@pytest.mark.parametrize(("read", "value"), [(read, value) for read, values in WRONG.values() for value in values])
def test_a_wrong_value_is_an_error_with_file_and_key(read: Callable[[GGUFMetadataReader], object], value: Any) -> None:
    with pytest.raises(ModelError) as raised:
        read(of(value))
    assert str(raised.value).startswith("a.gguf: llama.key ")
    assert len(str(raised.value)) < 160
    assert raised.value.details == {"file": "a.gguf", "field": "llama.key"}


@pytest.mark.parametrize("name", ["text", "size", "layer_size", "layer_flags", "list_length", "number"])
def test_a_missing_key_is_an_error(name: str) -> None:
    with pytest.raises(ModelError, match=r"^a\.gguf: llama\.key is missing$"):
        WRONG[name][0](GGUFMetadataReader({"qwen2.key": 3}, "llama", "a.gguf"))


def test_absent_keys_have_fallbacks() -> None:
    read = GGUFMetadataReader({}, "llama", "a.gguf")
    assert "key" not in read
    assert not read.is_list("key")
    assert (read.text_or("key", "x"), read.flag_or("key", True), read.size_or("key", 5)) == ("x", True, 5)
    assert (read.count_or_none("key"), read.number_or("key", 0.5), read.number_or_zero("key")) == (None, 0.5, 0.0)


def test_values_are_returned_in_their_types() -> None:
    assert "key" in of(3)
    assert of([1]).is_list("key")
    assert of("yarn").text("key") == "yarn"
    assert of(False).flag_or("key", True) is False
    assert (of(3).size("key"), of(0).count_or_none("key"), of(["a", "b"]).list_length("key")) == (3, 0, 2)
    assert (of(4).layer_size("key", 2), of([4, 4]).layer_size("key", 2)) == (4, 4)
    assert of([True, 0]).layer_flags("key", 2) == [True, False]
    number = of(8).number("key")
    assert number == 8.0
    assert isinstance(number, float)


def test_layers_of_different_sizes_are_not_supported() -> None:
    with pytest.raises(UnsupportedModel) as raised:
        of([4, 0, 8]).layer_size("key", 3)
    assert str(raised.value).startswith("a.gguf: llama.key differs between layers ([0, 4, 8]), which is not supported;")


@pytest.mark.parametrize("number", [1e-6, 1e-5, 10000.0, 1e6, 0.1, 0.707, 8.0, 1.20794, 3.40282e38, 1e-45, 0.0])
def test_a_number_of_config_json_comes_back_from_its_float32(number: float) -> None:
    stored = struct.unpack("<f", struct.pack("<f", number))[0]
    assert shortest_float32(stored) == number


def test_a_number_that_is_no_float32_is_unchanged() -> None:
    assert shortest_float32(0.1) == 0.1
    assert shortest_float32(1 / 3) == 1 / 3


@given(st.floats(width=32, min_value=0, allow_infinity=False))
def test_the_shortest_number_has_the_same_float32(stored: float) -> None:
    shortest = shortest_float32(stored)
    assert struct.pack("<f", shortest) == struct.pack("<f", stored)
    assert len(repr(shortest)) <= len(repr(stored))
