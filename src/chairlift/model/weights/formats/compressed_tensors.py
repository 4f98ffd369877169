"""The format compressed-tensors, which llm-compressor writes: matrices of 4-bit or 8-bit numbers with scales.

tensors of a module [O, I]                                              number
weight_packed int32 [O, ceil(I * bits / 32)], weight_shape [2]          (code - 2**(bits-1) - zero point) * scale
weight int8 [O, I]                                                      (code - zero point) * scale
weight float8_e4m3fn [O, I]                                             code * scale
weight_scale [1], [O, 1], [O, I / group] or one for each block; weight_zero_point and weight_g_idx where needed

The tensors say which modules are quantized. Activations are computed in the model's dtype and the KV cache is that of
the option kv_cache_dtype: scales for either in the folder are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chairlift.core.errors import UnsupportedModel
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model
from chairlift.model.config.quantized_checkpoint import method_options, quantization_method
from chairlift.model.weights.formats.safetensors import stored_files
from chairlift.model.weights.formats.scaled_weight import Block, ScaledWeight, scaled_weight
from chairlift.model.weights.formats.tensors_by_module import ModuleTensors, module_weights
from chairlift.model.weights.stored_weight import StoredWeight, damaged, stored_twice

__all__ = ["claims", "stored_files", "stored_weights"]

METHOD = "compressed-tensors"

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
"""Supported names of how tensors are stored, of a folder or of a group of its modules."""

PACKED_BITS = (4, 8)
"""Bits of a code in a word."""

STRATEGIES = ("tensor", "channel", "group", "block")
"""What has one scale."""

IGNORED_KINDS = frozenset(
    f"{tensor}_{number}" for tensor in ("input", "output", "q", "k", "v") for number in ("scale", "zero_point")
)  # fmt: skip
"""Last parts of names of tensors that only quantized activations and KV caches need."""

KINDS = ("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
"""Last parts of names of tensors that a quantized weight is made of."""


def claims(folder: Path) -> bool:
    """See WeightFormat."""
    return quantization_method(folder) == METHOD


def stored_weights(folder: Path, architecture: str) -> Iterator[tuple[str, StoredWeight]]:
    """See WeightFormat; raises UnsupportedModel for a way of storing tensors that is not supported."""
    blocks = list(_blocks(_checked_groups(*method_options(folder))))
    yield from module_weights(folder, architecture, lambda tensors: _quantized(tensors, blocks), KINDS, IGNORED_KINDS)


def _quantized(tensors: ModuleTensors, blocks: list[Block]) -> ScaledWeight | None:
    """Return the weight of a module; None for one that is not quantized. Raises ModelError."""
    packed, weight, scales = (tensors.get(kind) for kind in ("weight_packed", "weight", "weight_scale"))
    if weight is not None and packed is not None:
        raise stored_twice(weight.name, weight, packed)
    codes = weight if packed is None else packed
    if codes is None or (packed is None and scales is None and codes.dtype not in ("I8", "F8_E4M3")):
        return None
    if scales is None:
        raise damaged(codes, "is quantized, and its module has no weight_scale")
    zero_points, group_index = tensors.get("weight_zero_point"), tensors.get("weight_g_idx")
    if packed is not None:
        shape = _shape(packed, tensors.get("weight_shape"))
        bits = _bits(packed, shape)
        return scaled_weight(
            packed, scales, f"{METHOD} {bits}-bit", blocks,
            shape=shape, bits=bits, zero_points=zero_points, group_index=group_index,
        )  # fmt: skip
    if codes.dtype not in ("I8", "F8_E4M3"):
        raise damaged(codes, f"has a weight_scale and dtype {codes.dtype}; supported with scales are I8 and F8_E4M3")
    dtype = f"{METHOD} 8-bit" if codes.dtype == "I8" else codes.dtype
    return scaled_weight(codes, scales, dtype, blocks, zero_points=zero_points, group_index=group_index)


def _shape(packed: StoredWeight, stored: StoredWeight | None) -> tuple[int, ...]:
    """Return O and I of codes in words."""
    if stored is None:
        raise damaged(packed, "is quantized, and its module has no weight_shape")
    if stored.dtype not in ("I32", "I64") or stored.shape != (2,):
        raise damaged(stored, f"has dtype {stored.dtype} and shape {stored.shape}, two integers are required")
    return tuple(int(size) for size in stored.dense().tolist())


def _bits(packed: StoredWeight, shape: tuple[int, ...]) -> int:
    """Return the bits of a code, which the number of words in a row says."""
    for bits in PACKED_BITS:
        if packed.dtype == "I32" and packed.shape == (shape[0], -(-shape[1] * bits // 32)):
            return bits
    raise damaged(
        packed,
        f"has dtype {packed.dtype} and shape {packed.shape}, which is not that of 4-bit or 8-bit numbers of a weight "
        f"of shape {shape}",
    )


def _checked_groups(field: str, entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return how the weights of each group are quantized. Raises UnsupportedModel."""
    nested = entry.get("quantization_config")  # older files have it one object deeper
    content = {**entry, **nested} if isinstance(nested, Mapping) else entry
    config_groups = content.get("config_groups")
    values = config_groups.values() if isinstance(config_groups, Mapping) else ()
    groups = [group for group in values if isinstance(group, Mapping)]
    sparsity = content.get("sparsity_config")
    sparse = sparsity.get("format") if isinstance(sparsity, Mapping) else None
    for name in (content.get("format"), sparse, *(group.get("format") for group in groups)):
        if name is not None and name not in FORMATS:
            raise _unsupported(field, f"in format {name!r}")
    if content.get("transform_config"):
        raise _unsupported(field, "after rotations (transform_config)")
    weights = [group["weights"] for group in groups if isinstance(group.get("weights"), Mapping)]
    for group in weights:
        kind, bits, strategy = group.get("type", "int"), group.get("num_bits", 8), group.get("strategy")
        if not (kind == "int" and bits in PACKED_BITS) and not (kind == "float" and bits == 8):
            raise _unsupported(field, f"to {bits}-bit numbers of type {kind!r}")
        if strategy is not None and strategy not in STRATEGIES:
            raise _unsupported(field, f"with scales by {strategy!r}")
    return weights


def _blocks(groups: Iterable[Mapping[str, Any]]) -> Iterator[Block]:
    """Yield the sizes of blocks that the groups name; the shape of a scale tells which one it has."""
    for group in groups:
        structure, size = group.get("block_structure"), group.get("group_size")
        if isinstance(structure, list) and len(structure) == 2 and all(isinstance(s, int) and s > 0 for s in structure):
            yield structure[0], structure[1]
        elif isinstance(size, int) and size > 0:
            yield 1, size


def _unsupported(field: str, how: str) -> UnsupportedModel:
    return unsupported_model(
        f"the weights are quantized with {METHOD} {how} ({field}), which is not supported", ORIGINAL
    )
