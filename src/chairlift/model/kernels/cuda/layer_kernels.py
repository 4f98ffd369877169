"""Kernels of a layer's operations besides attention and matrix products. TritonOps launches them.

    rms_norm_kernel          norm of rows or heads
    add_rms_norm_kernel      sum of two tensors, and its norm
    gated_activation_kernel  activation(gate) * up
    softcap_kernel           cap * tanh(logits / cap)
    rotate_heads_kernel      norm and rotation of query and key heads; keys and values to the paged cache

All compute in float32 and round each stored number once. A row has the same bits in every batch: how it is summed
depends on its width alone. No kernel makes the host wait, so that CUDA graphs can contain them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import triton
import triton.language as tl

from chairlift.model.kernels.cuda.attention_kernels import as_stored
from chairlift.model.kernels.cuda.kernel_variant import KernelVariant, float8_cache

ELEMENTWISE_COLUMNS = 1024
"""Columns of a row that a program of an elementwise kernel computes."""

_NORM_ELEMENTS = 1024
"""Elements of a program of a norm, unless one row has more."""

_HEAD_PAIRS = 512
"""Pairs of elements of a program of rotate_heads_kernel, unless one head has more."""

_THREAD_ELEMENTS = 8
"""Elements of a thread of a norm: 16 bytes in 16-bit dtypes, the widest access to memory."""


class NormLaunch(NamedTuple):
    """How a norm is launched: rows of a program, their padded width, and warps."""

    rows: int
    columns: int
    num_warps: int


class HeadsLaunch(NamedTuple):
    """How rotate_heads_kernel is launched: heads of a program, the padded width of half a head, and warps."""

    heads: int
    half: int
    num_warps: int


def norm_launch(size: int) -> NormLaunch:
    """Return how norms of rows of `size` elements are launched."""
    columns = triton.next_power_of_2(size)
    rows = max(1, _NORM_ELEMENTS // columns)
    return NormLaunch(rows, columns, min(16, max(1, rows * columns // (32 * _THREAD_ELEMENTS))))


def heads_launch(num_heads: int, head_dim: int) -> HeadsLaunch:
    """Return how `num_heads` heads of a token, values included, are launched."""
    half = triton.next_power_of_2(head_dim // 2)
    heads = min(max(1, _HEAD_PAIRS // half), triton.next_power_of_2(num_heads))
    return HeadsLaunch(heads, half, min(8, max(1, 2 * heads * half // (32 * _THREAD_ELEMENTS))))


@triton.jit
def _inverse_rms(squares, eps, SIZE: tl.constexpr):
    return tl.rsqrt(tl.sum(squares, axis=1) / SIZE + eps)[:, None]


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x, weight, out, num_rows, eps, token_stride, head_stride, weight_stride,
    HEADS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalise x [T, HEADS, SIZE], whose last stride is 1, into dense out.

    Args:
        weight: of x's dtype or float32; head h has the one at h * weight_stride.
        num_rows: T * HEADS.
        token_stride, head_stride: strides of x, in elements.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < num_rows)[:, None] & (column < SIZE)
    token, head = row // HEADS, row % HEADS
    values = tl.load(x + (token * token_stride + head * head_stride)[:, None] + column, mask=mask, other=0.0)
    factors = tl.load(weight + (head * weight_stride)[:, None] + column, mask=mask, other=0.0).to(tl.float32)
    values = values.to(tl.float32)
    normed = values * _inverse_rms(values * values, eps, SIZE) * factors
    tl.store(out + row[:, None] * SIZE + column, normed.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def add_rms_norm_kernel(
    x, y, weight, total, out, num_rows, eps, x_stride, y_stride,
    SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store x + y [num_rows, SIZE] in dense total, and the norm of the rounded sum in dense out.

    Args:
        weight: [SIZE], of x's dtype or float32.
        x_stride, y_stride: strides of rows, in elements; the last stride is 1.
    """
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < num_rows) & (column < SIZE)
    left = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(y + row * y_stride + column, mask=mask, other=0.0).to(tl.float32)
    factors = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    # The norm is that of the stored sum, so that it has the same bits as a norm that reads it.
    rounded = (left + right).to(total.dtype.element_ty)
    tl.store(total + row * SIZE + column, rounded, mask=mask)
    values = rounded.to(tl.float32)
    normed = values * _inverse_rms(values * values, eps, SIZE) * factors
    tl.store(out + row * SIZE + column, normed.to(out.dtype.element_ty), mask=mask)


@triton.jit
def gated_values(x, factor, ACTIVATION: tl.constexpr):
    """Return activation(x) * factor of float32 numbers; ACTIVATION is that of gated_activation_kernel."""
    if ACTIVATION == "silu":
        return x * tl.sigmoid(x) * factor
    if ACTIVATION == "gelu_pytorch_tanh":
        # (1 + tanh(z)) / 2 is sigmoid(2 z); 1.59... is 2 * sqrt(2 / pi)
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x)) * factor
    if ACTIVATION == "clamped_swiglu":
        # A NaN fails both comparisons and stays.
        x = tl.where(x > 7.0, 7.0, x)
        factor = tl.where(factor > 7.0, 7.0, tl.where(factor < -7.0, -7.0, factor))
        return (factor + 1.0) * (x * tl.sigmoid(1.702 * x))
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)) * factor


@triton.jit
def gated_activation_kernel(
    gate, up, out, gate_stride, up_stride, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, COLUMNS: tl.constexpr
):
    """Store activation(gate) * up [T, SIZE] in dense out.

    Args:
        gate_stride, up_stride: strides of rows, in elements; the last stride is 1.
        ACTIVATION: one of decoder_config.ACTIVATIONS, or experts_config.CLAMPED_SWIGLU.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < SIZE
    x = tl.load(gate + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(up + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, gated_values(x, factor, ACTIVATION).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _tanh(x):
    """Return tanh(x) in float32, up to some units in the last place; near 0 by the first six terms of its series."""
    square = x * x
    series = 2.1869488e-2 - square * 8.8632355e-3
    series = 1.3333333e-1 + square * (-5.3968254e-2 + square * series)
    # Near 0 the other form would lose its digits in 1 - decay.
    near = x + x * square * (-3.3333333e-1 + square * series)
    decay = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - decay) / (1.0 + decay)
    return tl.where(tl.abs(x) < 0.3, near, tl.where(x < 0, -far, far))


@triton.jit
def softcap_kernel(logits, out, row_stride, cap, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """Store cap * tanh(logits / cap) [T, SIZE] in dense out; row_stride is that of logits, in elements."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < SIZE
    x = tl.load(logits + row * row_stride + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, (_tanh(x / cap) * cap).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["slot_mapping"])  # begins anywhere in the groups' tensor
def rotate_heads_kernel(
    heads, weight, cos, sin, query, key_cache, value_cache, slot_mapping,
    eps, token_stride, head_stride, block_size, block_stride, slot_stride, kv_head_stride,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_KV: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate query and key heads of a token; store queries, and keys and values at the token's slot.

    Args:
        heads: [T, QUERY_HEADS + 2 * KV_HEADS, 2 * HALF]: query, key and value heads; the last stride is 1.
        weight: [QUERY_HEADS + KV_HEADS, 2 * HALF], of the dtype of heads or float32; read if HAS_NORM.
        cos, sin: [T, 2 * HALF], in the layout of Ops.rotate.
        query: [T, QUERY_HEADS, 2 * HALF], dense.
        key_cache, value_cache: [num_blocks, block_size, KV_HEADS, 2 * HALF], both with the strides block_stride,
            slot_stride, kv_head_stride and 1; written if HAS_KV, in 8 bits as by as_stored.
        slot_mapping: int64 [T]; nothing is written for -1.
        token_stride, head_stride: strides of heads, in elements.
    """
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (head < QUERY_HEADS + 2 * KV_HEADS) & (column < HALF)
    is_rotated = mask & (head < QUERY_HEADS + KV_HEADS)
    source = heads + token * token_stride + head * head_stride + column
    left = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    normed_left, normed_right = left, right
    if HAS_NORM:
        factors = weight + head * (2 * HALF) + column
        inverse = _inverse_rms(left * left + right * right, eps, 2 * HALF)
        normed_left = left * inverse * tl.load(factors, mask=is_rotated, other=0.0).to(tl.float32)
        normed_right = right * inverse * tl.load(factors + HALF, mask=is_rotated, other=0.0).to(tl.float32)
    # Each angle is there twice, and the first half of sin is negated: one half of each is enough.
    cosine = tl.load(cos + token * (2 * HALF) + column, mask=column < HALF, other=0.0).to(tl.float32)
    sine = tl.load(sin + token * (2 * HALF) + HALF + column, mask=column < HALF, other=0.0).to(tl.float32)
    left = tl.where(is_rotated, normed_left * cosine - normed_right * sine, left)
    right = tl.where(is_rotated, normed_right * cosine + normed_left * sine, right)
    is_query = mask & (head < QUERY_HEADS)
    target = query + (token * QUERY_HEADS + head) * (2 * HALF) + column
    tl.store(target, left.to(query.dtype.element_ty), mask=is_query)
    tl.store(target + HALF, right.to(query.dtype.element_ty), mask=is_query)
    if HAS_KV:
        slot = tl.load(slot_mapping + token)
        if slot >= 0:
            place = (slot // block_size) * block_stride + (slot % block_size) * slot_stride
            is_key = is_rotated & (head >= QUERY_HEADS)
            new_key = key_cache + place + (head - QUERY_HEADS) * kv_head_stride + column
            tl.store(new_key, as_stored(left, key_cache), mask=is_key)
            tl.store(new_key + HALF, as_stored(right, key_cache), mask=is_key)
            is_value = mask & (head >= QUERY_HEADS + KV_HEADS)
            new_value = value_cache + place + (head - QUERY_HEADS - KV_HEADS) * kv_head_stride + column
            tl.store(new_value, as_stored(left, value_cache), mask=is_value)
            tl.store(new_value + HALF, as_stored(right, value_cache), mask=is_value)


def variants() -> list[KernelVariant]:
    """Return the variants in use: bfloat16, both kinds of norms, hidden sizes 1024 to 8192, heads of 64 to 256."""
    return [*_norm_variants(), *_elementwise_variants(), *_heads_variants()]


def _variant(name: str, kernel: Any, types: str, constants: dict[str, Any], num_warps: int) -> KernelVariant:
    """Return a variant; `types` are those of the parameters before the constants, in order."""
    signature = dict(zip(kernel.arg_names, types.split(), strict=False)) | dict.fromkeys(constants, "constexpr")
    return KernelVariant(name=name, kernel=kernel, signature=signature, constants=constants, num_warps=num_warps)


def _norm_variants() -> Iterator[KernelVariant]:
    for weight in ("bf16", "fp32"):
        for size, heads in ((1024, 1), (4096, 1), (8192, 1), (128, 40)):
            rows, columns, num_warps = norm_launch(size)
            shape = {"SIZE": size, "ROWS": rows, "COLUMNS": columns}
            types = f"*bf16 *{weight} *bf16 i32 fp32 i32 i32 i32"
            name = f"{weight} weight, {heads} x {size}"
            yield _variant(f"rms_norm {name}", rms_norm_kernel, types, {"HEADS": heads} | shape, num_warps)
            if heads == 1:
                types = f"*bf16 *bf16 *{weight} *bf16 *bf16 i32 fp32 i32 i32"
                yield _variant(f"add_rms_norm {name}", add_rms_norm_kernel, types, shape, num_warps)


def _elementwise_variants() -> Iterator[KernelVariant]:
    for activation in ("silu", "gelu", "gelu_pytorch_tanh", "clamped_swiglu"):
        shape = {"SIZE": 14336, "ACTIVATION": activation, "COLUMNS": ELEMENTWISE_COLUMNS}
        yield _variant(f"gated_activation {activation}", gated_activation_kernel, "*bf16 *bf16 *bf16 i32 i32", shape, 4)
    shape = {"SIZE": 128256, "COLUMNS": ELEMENTWISE_COLUMNS}
    yield _variant("softcap", softcap_kernel, "*bf16 *bf16 i32 fp32", shape, 4)


def _heads_variants() -> Iterator[KernelVariant]:
    for head_dim in (64, 128, 256):
        heads, half, num_warps = heads_launch(32 + 8 + 8, head_dim)
        shape = {"QUERY_HEADS": 32, "KV_HEADS": 8, "HALF": head_dim // 2, "HEADS": heads, "COLUMNS": half}
        for weight in (None, "bf16", "fp32"):
            types = f"*bf16 *{weight or 'bf16'} *bf16 *bf16 *bf16 *bf16 *bf16 *i64 fp32 i32 i32 i32 i32 i32 i32"
            flags = {"HAS_NORM": weight is not None, "HAS_KV": True}
            name = f"rotate_heads head_dim {head_dim}, norm {weight}"
            plain = _variant(name, rotate_heads_kernel, types, shape | flags, num_warps)
            yield from (plain, float8_cache(plain)) if weight != "fp32" else (plain,)
