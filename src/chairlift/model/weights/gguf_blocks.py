"""dequantize, group_codes: the numbers in the blocks of a GGUF tensor, whose layouts are those of ggml.

    type          block (bytes)                                            value
    Q4_0, IQ4_NL  d 2, nibbles 16                                          d (q - 8), d table[q]
    Q4_1          d 2, m 2, nibbles 16                                     d q + m
    Q5_0, Q5_1    as Q4_0, Q4_1 with 4 bytes of fifth bits before          d (q - 16), d q + m
    Q8_0          d 2, int8 32                                             d q
    MXFP4         exponent 1, nibbles 16                                   2**(e - 128) table[q]
    Q4_K          d 2, dmin 2, 6-bit s and m 12, nibbles 128               (d s) q - dmin m
    Q5_K          d 2, dmin 2, 6-bit s and m 12, fifth bits 32, nibbles 128
    Q6_K          nibbles 128, bit pairs 64, int8 s 16, d 2                (d s) (q - 32)
    IQ4_XS        d 2, high bit pairs of s 2, low nibbles of s 4, nibbles 128     (d (s - 32)) table[q]

d, m and dmin are float16. A run of n nibble bytes has first the n low nibbles and then the n high ones.

The functions take all rows that are passed at once: a caller that must bound its memory passes a few rows at a time.
Rows can be reordered or selected before, since each has its own bytes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.model.config.gguf_cursor import shown_name
from chairlift.model.config.gguf_file import GGUFTensor
from chairlift.model.config.gguf_types import GGMLType
from chairlift.model.weights.group_codes import GroupCodes

Bytes = NDArray[np.uint8]

IQ4_TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
MXFP4_TABLE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Twice the values of FP4 (E2M1), whose scale is half of 2**(e - 127); there is no negative zero."""

HALF_SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
"""Type -> first bytes of the float16 scales and minima in a block."""

HALF_EXPONENT = 0x7C
"""Bits of the exponent in the second byte of a float16: all are set in infinity and NaN."""
MXFP4_NAN = 255
"""Exponent that the MX specification defines as NaN."""


def dequantize(data: Bytes, kind: GGMLType) -> NDArray[np.float32]:
    """Return the values of rows: float32 [rows, columns], bit for bit those of ggml.

    Args:
        data: uint8 [rows, bytes of a row].
        kind: the type of the tensor.
    """
    if kind.name == "F32":
        return np.ascontiguousarray(data).view("<f4").astype(np.float32)
    if kind.name == "F16":
        return np.ascontiguousarray(data).view("<f2").astype(np.float32)
    if kind.name == "BF16":
        values = np.ascontiguousarray(data).view("<u2").astype(np.uint32)
        values <<= 16  # a bfloat16 is the upper half of a float32
        return values.view(np.float32)
    return group_codes(data, kind).dense()


def is_quantized(kind: GGMLType) -> bool:
    """Return whether a type has codes and scales, which group_codes returns."""
    return kind.name in _UNPACK


def group_codes(data: Bytes, kind: GGMLType) -> GroupCodes:
    """Return the codes and the scales of rows of a quantized type.

    Args:
        data: uint8 [rows, bytes of a row].
        kind: the type of the tensor, a quantized one.
    """
    return _UNPACK[kind.name](_blocks(data, kind))


def check_scales(data: Bytes, tensor: GGUFTensor) -> None:
    """Raise ModelError, with the tensor's name, if a block of the rows has a scale that is infinite or not a number.

    Args:
        data: uint8 [rows, bytes of a row]; rows of a type without scales pass.
        tensor: the tensor that the rows are of.
    """
    if not is_quantized(tensor.type):
        return
    blocks = _blocks(data, tensor.type)
    if tensor.type.name == "MXFP4":
        is_wrong = blocks[..., 0] == MXFP4_NAN
    else:
        high_bytes = blocks[..., [at + 1 for at in HALF_SCALES[tensor.type.name]]]
        is_wrong = ((high_bytes & HALF_EXPONENT) == HALF_EXPONENT).any(axis=-1)
    if is_wrong.any():
        problem = f"a scale is infinite or not a number in {int(is_wrong.sum())} of {is_wrong.size} blocks"
        message = f"tensor {shown_name(tensor.name)} in {tensor.file} is damaged: {problem}; download the file again"
        raise ModelError(message, file=str(tensor.file), tensor=tensor.name)


def _blocks(data: Bytes, kind: GGMLType) -> Bytes:
    """Return the rows by block: [rows, blocks, bytes of a block]."""
    return data.reshape(len(data), -1, kind.block_bytes)


def _halves(blocks: Bytes, at: int) -> NDArray[np.float32]:
    """Return the float16 at a byte of each block as float32 [rows, blocks]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Return the nibbles of [rows, blocks, n] as [rows, blocks, 2 n], in runs of bytes: first the low ones of a run."""
    runs = packed.reshape(*packed.shape[:2], -1, 1, run)
    return np.concatenate((runs & 15, runs >> 4), axis=-2).reshape(*packed.shape[:2], -1)


def _rows(parts: NDArray[Any]) -> NDArray[Any]:
    """Return [rows, blocks, n] as [rows, blocks n]."""
    return parts.reshape(len(parts), -1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Return the bits of [rows, blocks, 4] as [rows, blocks, 32] with the values 0 and 16."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Bytes) -> GroupCodes:
    return GroupCodes(_rows(_nibbles(blocks[..., 2:], 16)), 4, 32, _halves(blocks, 0), offset=8)


def _q4_1(blocks: Bytes) -> GroupCodes:
    return GroupCodes(_rows(_nibbles(blocks[..., 4:], 16)), 4, 32, _halves(blocks, 0), -_halves(blocks, 2))


def _q5_0(blocks: Bytes) -> GroupCodes:
    codes = _nibbles(blocks[..., 6:], 16) | _fifth_bits(blocks[..., 2:6])
    return GroupCodes(_rows(codes), 5, 32, _halves(blocks, 0), offset=16)


def _q5_1(blocks: Bytes) -> GroupCodes:
    codes = _nibbles(blocks[..., 8:], 16) | _fifth_bits(blocks[..., 4:8])
    return GroupCodes(_rows(codes), 5, 32, _halves(blocks, 0), -_halves(blocks, 2))


def _q8_0(blocks: Bytes) -> GroupCodes:
    return GroupCodes(_rows(blocks[..., 2:].copy()).view(np.int8), 8, 32, _halves(blocks, 0))


def _iq4_nl(blocks: Bytes) -> GroupCodes:
    return GroupCodes(_rows(_nibbles(blocks[..., 2:], 16)), 4, 32, _halves(blocks, 0), table=IQ4_TABLE)


def _mxfp4(blocks: Bytes) -> GroupCodes:
    # The exponents 0 and 1 give 2**-128 and 2**-127, which are subnormal.
    scales = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128)
    return GroupCodes(_rows(_nibbles(blocks[..., 1:], 16)), 4, 32, scales, table=MXFP4_TABLE)


def _q4_k(blocks: Bytes) -> GroupCodes:
    return _with_minima(blocks, _nibbles(blocks[..., 16:], 32), 4)


def _q5_k(blocks: Bytes) -> GroupCodes:
    bits = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)  # bit j is of run j
    codes = _nibbles(blocks[..., 48:], 32) | bits.reshape(*blocks.shape[:2], 256) << np.uint8(4)
    return _with_minima(blocks, codes, 5)


def _with_minima(blocks: Bytes, codes: Bytes, bits: int) -> GroupCodes:
    """Return the codes of Q4_K or Q5_K with their 8 scales and minima in a block.

    The first four scales and minima are in the low six bits of bytes 4..7 and 8..11. The others have their low four
    bits in the nibbles of bytes 12..15, and their high two bits are the high bits of those of the first four.
    """
    first, rest = blocks[..., 4:12], blocks[..., 12:16]
    high_bits = first >> 6 << 4
    scales = np.concatenate((first[..., :4] & 63, rest & 15 | high_bits[..., :4]), axis=-1)
    minima = np.concatenate((first[..., 4:] & 63, rest >> 4 | high_bits[..., 4:]), axis=-1)
    super_scales, super_minima = _halves(blocks, 0), _halves(blocks, 2)
    return GroupCodes(
        _rows(codes), bits, 32, _products(super_scales, scales), _products(super_minima, minima),
        super_scales=super_scales, integer_scales=_rows(scales),
        super_minima=super_minima, integer_minima=_rows(minima),
    )  # fmt: skip


def _q6_k(blocks: Bytes) -> GroupCodes:
    pairs = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32)  # 32 bytes have the high bits of 4 runs
    high_bits = pairs >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = _nibbles(blocks[..., :128], 64) | high_bits.reshape(*blocks.shape[:2], 256) << 4
    scales, super_scales = blocks[..., 192:208].copy().view(np.int8), _halves(blocks, 208)
    return GroupCodes(
        _rows(codes), 6, 16, _products(super_scales, scales), offset=32,
        super_scales=super_scales, integer_scales=_rows(scales),
    )  # fmt: skip


def _iq4_xs(blocks: Bytes) -> GroupCodes:
    pairs = np.ascontiguousarray(blocks[..., 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (_nibbles(blocks[..., 4:8], 1) | pairs.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
    super_scales = _halves(blocks, 0)
    return GroupCodes(
        _rows(_nibbles(blocks[..., 8:], 16)), 4, 32, _products(super_scales, scales), table=IQ4_TABLE,
        super_scales=super_scales, integer_scales=_rows(scales),
    )  # fmt: skip


def _products(super_scales: NDArray[np.float32], integers: NDArray[Any]) -> NDArray[np.float32]:
    """Return super-scales [rows, blocks] times integers [rows, blocks, n] as [rows, blocks n]; each is exact."""
    with np.errstate(invalid="ignore"):
        products: NDArray[np.float32] = super_scales[..., None] * integers.astype(np.float32)
    return _rows(products)


_UNPACK: dict[str, Callable[[Bytes], GroupCodes]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k,
    "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4,
}  # fmt: skip
