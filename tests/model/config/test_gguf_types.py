"""GGMLType: numbers, names and sizes are those of the package gguf."""

import gguf

from chairlift.model.config.gguf_types import GGML_TYPES, UNSUPPORTED_TYPES


def test_supported_types_have_the_sizes_of_ggml() -> None:
    assert len(GGML_TYPES) == 14
    for kind in GGML_TYPES.values():
        theirs = gguf.GGMLQuantizationType(kind.id)
        assert (kind.name, (kind.block_size, kind.block_bytes)) == (theirs.name, gguf.GGML_QUANT_SIZES[theirs])


def test_every_type_of_ggml_is_in_one_table() -> None:
    assert not GGML_TYPES.keys() & UNSUPPORTED_TYPES.keys()
    names = {number: kind.name for number, kind in GGML_TYPES.items()} | UNSUPPORTED_TYPES
    for theirs in gguf.GGMLQuantizationType:
        assert names[theirs.value] == theirs.name


def test_the_bytes_of_a_row_are_those_of_its_blocks() -> None:
    assert GGML_TYPES[12].row_bytes(512) == 288
    assert GGML_TYPES[0].row_bytes(3) == 12
