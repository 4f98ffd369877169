"""dequantize: bit for bit the values of the package gguf, for random blocks, corner cases and a whole real file."""

import itertools
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.model.config.gguf_file import GGUFTensor, read_gguf
from chairlift.model.config.gguf_types import GGML_TYPES, GGMLType
from chairlift.model.weights.gguf_blocks import HALF_SCALES, check_scales, dequantize, group_codes, is_quantized
from support_gguf import random_blocks, smollm2_file

TYPES = {kind.name: kind for kind in GGML_TYPES.values()}
QUANTIZED = sorted(name for name, kind in TYPES.items() if kind.block_size > 1)

INTEGER_SCALES = {
    "Q4_K": slice(4, 16), "Q5_K": slice(4, 16), "Q6_K": slice(192, 208), "IQ4_XS": slice(2, 8), "MXFP4": slice(0, 1),
}  # fmt: skip
"""Bytes of a block that have its integer scales and minima."""

HALVES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF], "<u2")
"""float16: zeros, subnormal numbers, the smallest normal number, 1, -1, and the largest numbers."""

FILLS = (0x00, 0xFF, 0x0F, 0xF0, 0x3F, 0x7F, 0x80, 0x55)
"""Bytes that make codes 0, 15, 31 and 63, and scales 0, 63, 127 and -128."""


def theirs(data: NDArray[np.uint8], kind: GGMLType) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        values: NDArray[np.float32] = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind.id))
    return values


def assert_same_bits(mine: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    assert mine.dtype == np.float32 and mine.shape == other.shape
    assert np.array_equal(mine.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (1, 5), (7, 1), (33, 4)])
def test_random_blocks_have_the_bits_of_gguf(name: str, rows: int, blocks: int) -> None:
    data = random_blocks(TYPES[name], rows, blocks, seed=rows)
    before = data.copy()
    mine = dequantize(data, TYPES[name])
    assert mine.shape == (rows, blocks * TYPES[name].block_size)
    assert_same_bits(mine, theirs(data, TYPES[name]))
    assert np.array_equal(data, before)
    assert not np.shares_memory(group_codes(data, TYPES[name]).codes, data)


@pytest.mark.parametrize("name", QUANTIZED)
def test_corner_cases_have_the_bits_of_gguf(name: str) -> None:
    kind = TYPES[name]
    halves = itertools.product(HALVES.view(np.uint8).reshape(-1, 2), repeat=len(HALF_SCALES.get(name, ())))
    blocks = []
    for scales, codes, integers in itertools.product(halves, FILLS, FILLS if name in INTEGER_SCALES else FILLS[:1]):
        block = np.full(kind.block_bytes, codes, np.uint8)
        block[INTEGER_SCALES.get(name, slice(0))] = integers
        for at, half in zip(HALF_SCALES.get(name, ()), scales, strict=True):
            block[at : at + 2] = half
        blocks.append(block)
    data = np.concatenate(blocks)[None]
    assert_same_bits(dequantize(data, kind), theirs(data, kind))


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4"])
def test_every_integer_scale_has_the_bits_of_gguf(name: str) -> None:
    kind = TYPES[name]
    for value in range(256):
        data = random_blocks(kind, 2, 1, seed=value)
        data[:, INTEGER_SCALES[name]] = min(value, 254) if name == "MXFP4" else value
        assert_same_bits(dequantize(data, kind), theirs(data, kind))


@pytest.mark.parametrize(("name", "dtype"), [("F32", "<f4"), ("F16", "<f2"), ("BF16", "<u2")])
def test_floats_are_those_of_the_file(name: str, dtype: str) -> None:
    kind = TYPES[name]
    data = np.random.default_rng(0).integers(0, 256, (5, 64 * kind.block_bytes), np.uint8)
    data[0, : 20 * kind.block_bytes] = 0
    mine, other = dequantize(data, kind), theirs(data, kind)
    is_nan = np.isnan(other)
    assert np.array_equal(np.isnan(mine), is_nan)
    assert np.array_equal(mine.view(np.uint32)[~is_nan], other.view(np.uint32)[~is_nan])
    assert not np.shares_memory(mine, data)
    assert_same_bits(dequantize(data[:, : 8 * kind.block_bytes], kind), mine[:, :8])  # rows that are not contiguous
    if name != "BF16":
        assert np.array_equal(data.view(dtype).astype(np.float32), mine, equal_nan=True)


@pytest.mark.parametrize("name", TYPES)
def test_rows_can_be_reordered_before(name: str) -> None:
    kind = TYPES[name]
    data = random_blocks(kind, 6, 256 // kind.block_size, seed=3)
    order = np.array([5, 0, 3, 1])
    some = dequantize(data[order], kind)
    assert np.array_equal(some, dequantize(data, kind)[order], equal_nan=True)


def test_every_tensor_of_a_real_file_has_the_bits_of_gguf() -> None:
    path = smollm2_file()
    file = read_gguf(path)
    assert {tensor.type.name for tensor in file.tensors.values()} == {"F32", "Q4_1", "Q8_0"}
    content = np.memmap(path, np.uint8, mode="r")
    for tensor in file.tensors.values():
        row_bytes = tensor.type.row_bytes(tensor.shape[-1])
        data = content[tensor.offset : tensor.offset + tensor.num_bytes].reshape(-1, row_bytes)
        check_scales(data, tensor)
        for rows in np.array_split(data, -(-len(data) // 4096)):  # as a reader does that bounds its memory
            mine = dequantize(rows, tensor.type)
            assert mine.shape[1] == tensor.shape[-1]
            assert_same_bits(mine, theirs(np.asarray(rows), tensor.type).reshape(mine.shape))


def tensor_of(kind: GGMLType, rows: int) -> GGUFTensor:
    return GGUFTensor("blk.0.ffn_up.weight", (rows, 512), kind, Path("folder/m.gguf"), 0, 0)


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_scale_that_is_not_finite_is_refused_with_the_tensor_s_name(name: str) -> None:
    kind = TYPES[name]
    whole = random_blocks(kind, 3, 512 // kind.block_size, seed=1)
    check_scales(whole, tensor_of(kind, 3))
    message = "tensor blk.0.ffn_up.weight in folder/m.gguf is damaged: a scale is infinite or not a number in 1 of "
    for at, half in itertools.product(HALF_SCALES.get(name, ()), (0x7C00, 0xFC00, 0x7C01, 0xFE00, 0xFFFF)):
        data = whole.copy()
        data.reshape(3, -1, kind.block_bytes)[1, -1, at : at + 2] = np.array([half], "<u2").view(np.uint8)
        with pytest.raises(ModelError, match=message):
            check_scales(data, tensor_of(kind, 3))
    if name == "MXFP4":
        whole.reshape(3, -1, kind.block_bytes)[2, 0, 0] = 255
        with pytest.raises(ModelError, match=message):
            check_scales(whole, tensor_of(kind, 3))


@pytest.mark.parametrize("name", sorted(HALF_SCALES))
def test_every_half_is_finite_or_refused(name: str) -> None:
    kind = TYPES[name]
    for at in HALF_SCALES[name]:
        blocks = np.zeros((1 << 16, kind.block_bytes), np.uint8)
        halves = np.arange(1 << 16, dtype="<u2")
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
        num_wrong = int((~np.isfinite(halves.view("<f2"))).sum())
        with pytest.raises(ModelError, match=f"a scale is infinite or not a number in {num_wrong} of 65536 blocks"):
            check_scales(blocks, tensor_of(kind, 1 << 16))


def test_rows_of_floats_have_no_scales() -> None:
    for name in ("F32", "F16", "BF16"):
        assert not is_quantized(TYPES[name])
        check_scales(np.full((1, 64), 255, np.uint8), tensor_of(TYPES[name], 1))
    assert all(is_quantized(TYPES[name]) for name in QUANTIZED)
