"""GroupCodes: each formula of its docstring, in float64, gives the values of every type of block."""

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.model.config.gguf_types import GGML_TYPES
from chairlift.model.weights.gguf_blocks import dequantize, group_codes
from chairlift.model.weights.group_codes import GroupCodes
from support_gguf import random_blocks

TYPES = {kind.name: kind for kind in GGML_TYPES.values()}

FORMS = {
    "Q4_0": (4, 32, 8, False, False, False), "Q4_1": (4, 32, 0, True, False, False),
    "Q5_0": (5, 32, 16, False, False, False), "Q5_1": (5, 32, 0, True, False, False),
    "Q8_0": (8, 32, 0, False, False, False), "Q4_K": (4, 32, 0, True, False, True),
    "Q5_K": (5, 32, 0, True, False, True), "Q6_K": (6, 16, 32, False, False, True),
    "IQ4_NL": (4, 32, 0, False, True, False), "IQ4_XS": (4, 32, 0, False, True, True),
    "MXFP4": (4, 32, 0, False, True, False),
}  # fmt: skip
"""Type -> bits, group size, offset; whether it has minima, a table, super-scales."""


def repeat(groups: NDArray[np.generic], size: int) -> NDArray[np.float64]:
    return np.repeat(groups.astype(np.float64), size, axis=1)


def codes_of(name: str, rows: int = 5, blocks: int = 3) -> tuple[GroupCodes, NDArray[np.float32]]:
    data = random_blocks(TYPES[name], rows, blocks * 256 // TYPES[name].block_size, seed=2)
    return group_codes(data, TYPES[name]), dequantize(data, TYPES[name])


@pytest.mark.parametrize("name", FORMS)
def test_the_fields_of_each_type(name: str) -> None:
    codes, values = codes_of(name)
    has_minima, has_table, has_super = codes.minima is not None, codes.table is not None, codes.super_scales is not None
    assert (codes.bits, codes.group_size, codes.offset, has_minima, has_table, has_super) == FORMS[name]
    assert codes.shape == values.shape == codes.codes.shape == (5, 768)
    assert codes.codes.dtype == (np.int8 if name == "Q8_0" else np.uint8)
    if name != "Q8_0":
        assert (codes.codes.min(), codes.codes.max()) == (0, 2**codes.bits - 1)
    groups = (5, 768 // codes.group_size)
    for scales in (codes.scales, codes.minima):
        assert scales is None or (scales.shape, scales.dtype) == (groups, np.float32)
    for scales in (codes.super_scales, codes.super_minima):
        assert scales is None or (scales.shape, scales.dtype) == ((5, 3), np.float32)
    for integers in (codes.integer_scales, codes.integer_minima):
        assert integers is None or (integers.shape, integers.itemsize) == (groups, 1)
    assert (codes.integer_scales is None) == (not has_super)
    assert (codes.super_minima is None) == (codes.integer_minima is None) == (not (has_super and has_minima))


@pytest.mark.parametrize("name", FORMS)
def test_the_values_are_those_of_the_formula(name: str) -> None:
    codes, values = codes_of(name)
    size = codes.group_size
    units = codes.table[codes.codes] if codes.table is not None else codes.codes.astype(np.float64) - codes.offset
    products = repeat(codes.scales, size) * units
    minima = np.zeros_like(products) if codes.minima is None else repeat(codes.minima, size)
    with np.errstate(over="ignore"):  # MXFP4 has scales up to 2**126
        assert np.array_equal((products - minima).astype(np.float32), values)  # rounded once, or the product is exact
    assert np.array_equal(codes.dense().view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form[-1]])
def test_super_scales_times_integers_are_exactly_the_scales(name: str) -> None:
    codes, _ = codes_of(name, rows=40)
    assert codes.super_scales is not None and codes.integer_scales is not None
    per_block = 256 // codes.group_size
    assert np.array_equal(repeat(codes.super_scales, per_block) * codes.integer_scales, codes.scales)
    if codes.minima is not None:
        assert codes.super_minima is not None and codes.integer_minima is not None
        assert np.array_equal(repeat(codes.super_minima, per_block) * codes.integer_minima, codes.minima)
        assert codes.integer_scales.max() == codes.integer_minima.max() == 63


def test_a_small_matrix_by_hand() -> None:
    codes = np.arange(32, dtype=np.uint8)[None] % 16
    scales, minima = np.array([[2.0, -1.0]], np.float32), np.array([[0.5, 0.25]], np.float32)
    plain = GroupCodes(codes, 4, 16, scales, offset=8)
    assert plain.dense()[0, [0, 15, 16, 31]].tolist() == [-16.0, 14.0, 8.0, -7.0]
    with_minima = GroupCodes(codes, 4, 16, scales, minima)
    assert with_minima.dense()[0, [0, 15, 16, 31]].tolist() == [-0.5, 29.5, -0.25, -15.25]
    with_table = GroupCodes(codes, 4, 16, scales, minima, table=np.arange(16, dtype=np.float32) ** 2)
    assert with_table.dense()[0, [0, 15, 16, 31]].tolist() == [-0.5, 449.5, -0.25, -225.25]
    assert with_table.shape == (1, 32)


def test_groups_that_do_not_fit_are_a_bug() -> None:
    codes = np.zeros((2, 48), np.uint8)
    with pytest.raises(AssertionError):
        GroupCodes(codes, 4, 32, np.zeros((2, 1), np.float32))
    with pytest.raises(AssertionError):
        GroupCodes(codes, 4, 16, np.zeros((2, 2), np.float32))
    with pytest.raises(AssertionError):
        GroupCodes(codes, 4, 16, np.zeros((2, 3), np.float32), np.zeros((2, 2), np.float32))
