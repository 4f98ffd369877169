"""variants: the attention kernels as they are launched for common models, for compile_check."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from chairlift.model.kernels.cuda.attention_kernels import (
    REDUCE_SPLITS,
    WRITE_HEADS,
    decode_kernel,
    extend_kernel,
    reduce_kernel,
    write_kv_kernel,
)  # fmt: skip
from chairlift.model.kernels.cuda.attention_tiles import AttentionTiles, decode_tiles, extend_tiles
from chairlift.model.kernels.cuda.kernel_variant import KernelVariant, float8_cache

KV_HEADS = 8
GROUP = 4
HEAD_DIMS = (64, 128, 256)
BLOCK_SIZES = (16, 64)
LARGE_GROUP, LARGE_HEAD_DIM = 71, 512
"""A group of query heads that is divided (Falcon), and heads of some layers only (Gemma 4).

Heads of 512 are not compiled in float32: they spill registers, so the kernels are slow there."""
WARP_GROUP_ROWS = 64
"""Rows that Hopper's instructions multiply at once; larger heads' tiles have fewer, or they overflow shared memory."""

EVERY = " window cap sinks"
MOST_USED = (128, 16)
"""Head size and block size for which each feature of a layer is compiled alone, too."""

TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
NUMBERS = {"window": "i32", "score_scale": "fp32", "cap": "fp32", "stride_table": "i32"}
SPLITS = {"max_splits": "i32", "min_tiles": "i32"}


def variants() -> list[KernelVariant]:
    """Return all kernels in bfloat16 for each head size, decode and extend also for each block size.

    Decode and extend are there in float32, for large heads and for large groups of query heads, too. Those that read or
    write the cache are also there for one of 8-bit floats, with one block size.
    """
    tiled = [
        make(head_dim, block_size, name, features)
        for make in (_decode, _extend)
        for head_dim in HEAD_DIMS
        for block_size in BLOCK_SIZES
        for name, features in _features(every=(head_dim, block_size) == MOST_USED)
    ]
    every = dict(_features(every=False))[EVERY]
    exact = [
        make(head_dim, BLOCK_SIZES[0], EVERY, every, dtype=torch.float32, group=group)
        for make in (_decode, _extend)
        for head_dim in HEAD_DIMS
        for group in (GROUP, LARGE_GROUP)
    ]
    large = [
        make(head_dim, BLOCK_SIZES[0], EVERY, every, group=group)
        for make in (_decode, _extend)
        for head_dim, group in ((LARGE_HEAD_DIM, GROUP), *((each, LARGE_GROUP) for each in HEAD_DIMS))
    ]
    split = next(each for each in tiled if each.constants["HEAD_DIM"] == MOST_USED[0])
    in_one = replace(split, name=f"{split.name} in one", constants={**split.constants, "IS_SPLIT": False})
    writes = [*map(_write, HEAD_DIMS)]
    float8 = [each for each in (*tiled, in_one, *writes) if each.constants["BLOCK_SIZE"] == BLOCK_SIZES[0]]
    return [*tiled, *exact, *large, in_one, *writes, *map(_reduce, HEAD_DIMS), *map(_with_float8_cache, float8)]


def _with_float8_cache(variant: KernelVariant) -> KernelVariant:
    changed = float8_cache(variant)
    if variant.kernel is not extend_kernel:
        return changed
    tiles = extend_tiles(torch.bfloat16, variant.constants["HEAD_DIM"], GROUP, is_float8=True)
    return replace(changed, num_stages=tiles.num_stages)


def _pointers(dtype: torch.dtype) -> dict[str, str]:
    tensors = dict.fromkeys(("query", "key_cache", "value_cache", "sinks", "out"), f"*{TYPES[dtype]}")
    return tensors | {"block_table": "*i32", "seq_lens": "*i32"}


def _signature(pointers: dict[str, str], numbers: dict[str, str], constants: dict[str, Any]) -> dict[str, str]:
    return pointers | numbers | dict.fromkeys(constants, "constexpr")


def _layout(head_dim: int, block_size: int, width: int) -> dict[str, Any]:
    slot = KV_HEADS * head_dim
    return {"STRIDE_BLOCK": block_size * slot, "STRIDE_SLOT": slot, "STRIDE_HEAD": head_dim, "HEAD_DIM": head_dim,
            "WIDTH": width, "BLOCK_SIZE": block_size}  # fmt: skip


def _features(*, every: bool) -> Iterator[tuple[str, dict[str, bool]]]:
    """Yield the kinds of layers: plain, with all features, and on demand with each of them."""
    off = {"HAS_WINDOW": False, "HAS_CAP": False, "HAS_SINKS": False}
    yield "", off
    yield EVERY, dict.fromkeys(off, True)
    for name in off if every else ():
        yield f" {name.removeprefix('HAS_').lower()}", off | {name: True}


def _constants(head_dim: int, block_size: int, group: int, tiles: AttentionTiles) -> dict[str, Any]:
    heads = group * head_dim * KV_HEADS
    return _layout(head_dim, block_size, tiles.width) | {
        "STRIDE_QUERY": heads + 2 * KV_HEADS * head_dim, "STRIDE_OUT": heads, "GROUP": group, "HEADS": tiles.heads,
        "TILE_ROWS": tiles.rows, "TILE_KEYS": tiles.keys, "PRECISION": tiles.precision,
    }  # fmt: skip


def _decode(
    head_dim: int, block_size: int, name: str, features: dict[str, bool], *, dtype: torch.dtype = torch.bfloat16,
    group: int = GROUP,
) -> KernelVariant:  # fmt: skip
    tiles = decode_tiles(dtype, head_dim, group)
    constants = _constants(head_dim, block_size, group, tiles) | features | {"IS_SPLIT": True}
    pointers = _pointers(dtype) | {"partial": "*fp32", "statistics": "*fp32"}
    return KernelVariant(
        name=f"decode {TYPES[dtype]} head_dim {head_dim} block {block_size} group {group}{name}",
        kernel=decode_kernel, constants=constants,
        signature=_signature(pointers, NUMBERS | SPLITS, constants), num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )  # fmt: skip


def _extend(
    head_dim: int, block_size: int, name: str, features: dict[str, bool], *, dtype: torch.dtype = torch.bfloat16,
    group: int = GROUP,
) -> KernelVariant:  # fmt: skip
    tiles = extend_tiles(dtype, head_dim, group)
    constants = _constants(head_dim, block_size, group, tiles) | features
    pointers = _pointers(dtype) | {"cu_seqlens": "*i32"}
    numbers = NUMBERS | {"first_row": "i32", "num_rows": "i32", "num_tokens": "i32"}
    return KernelVariant(
        name=f"extend {TYPES[dtype]} head_dim {head_dim} block {block_size} group {group}{name}",
        kernel=extend_kernel, constants=constants,
        signature=_signature(pointers, numbers, constants), num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        needs_tensor_cores=dtype == torch.bfloat16 and tiles.rows >= WARP_GROUP_ROWS,
    )  # fmt: skip


def _write(head_dim: int) -> KernelVariant:
    width = decode_tiles(torch.bfloat16, head_dim, GROUP).width
    constants = _layout(head_dim, BLOCK_SIZES[0], width) | {"KV_HEADS": KV_HEADS, "TILE_HEADS": WRITE_HEADS}
    pointers = {"key": "*bf16", "value": "*bf16", "key_cache": "*bf16", "value_cache": "*bf16", "slot_mapping": "*i64"}
    return KernelVariant(
        name=f"write_kv bf16 head_dim {head_dim}", kernel=write_kv_kernel, constants=constants,
        signature=_signature(pointers, {"stride_key": "i32", "stride_value": "i32"}, constants),
    )  # fmt: skip


def _reduce(head_dim: int) -> KernelVariant:
    tiles = decode_tiles(torch.bfloat16, head_dim, GROUP)
    constants = {"STRIDE_OUT": KV_HEADS * GROUP * head_dim, "HEAD_DIM": head_dim, "WIDTH": tiles.width,
                 "TILE_KEYS": tiles.keys, "HAS_WINDOW": True, "SPLITS": REDUCE_SPLITS}  # fmt: skip
    pointers = {"partial": "*fp32", "statistics": "*fp32", "seq_lens": "*i32", "out": "*bf16"}
    return KernelVariant(
        name=f"reduce bf16 head_dim {head_dim} window", kernel=reduce_kernel, constants=constants,
        signature=_signature(pointers, SPLITS | {"window": "i32", "num_splits": "i32"}, constants),
    )  # fmt: skip
