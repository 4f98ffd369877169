"""The formats fp8 and fbgemm_fp8: matrices of 8-bit floats with 4 bits of exponent, which scales multiply.

tensors of a module [O, I]
weight float8_e4m3fn [O, I]
weight_scale or weight_scale_inv: [], [1], [O], [O, 1] or, for blocks of weight_block_size, 128 x 128 by default,
    [ceil(O / rows), ceil(I / columns)]

The tensors say which modules are quantized. A scale multiplies under both names. Activations are computed in the
model's dtype: their scales in the folder are left out.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model
from chairlift.model.config.quantized_checkpoint import method_options, quantization_method
from chairlift.model.weights.formats.safetensors import stored_files
from chairlift.model.weights.formats.scaled_weight import Block, ScaledWeight, scaled_weight
from chairlift.model.weights.formats.tensors_by_module import ModuleTensors, module_weights
from chairlift.model.weights.stored_weight import StoredWeight, damaged

__all__ = ["claims", "stored_files", "stored_weights"]

METHODS = ("fp8", "fbgemm_fp8")

NUMBERS = "F8_E4M3"
"""Safetensors' name of the dtype of the codes."""

DEFAULT_BLOCK: Block = (128, 128)
"""Rows and columns with one scale, where config.json has no weight_block_size."""

SCALES = ("weight_scale_inv", "weight_scale")

IGNORED_KINDS = frozenset(
    ("input_scale", "input_scale_ub", "activation_scale", "output_scale", "q_scale", "k_scale", "v_scale")
)  # fmt: skip
"""Last parts of names of tensors that only quantized activations and KV caches need."""


def claims(folder: Path) -> bool:
    """See WeightFormat."""
    return quantization_method(folder) in METHODS


def stored_weights(folder: Path, architecture: str) -> Iterator[tuple[str, StoredWeight]]:
    """See WeightFormat; raises UnsupportedModel for other 8-bit floats, ModelError for a weight without a scale."""
    blocks = _blocks(folder, *method_options(folder))
    kinds = ("weight", *SCALES)
    yield from module_weights(folder, architecture, lambda tensors: _quantized(tensors, blocks), kinds, IGNORED_KINDS)


def _quantized(tensors: ModuleTensors, blocks: list[Block]) -> ScaledWeight | None:
    """Return the weight of a module; None for one that is not quantized. Raises ModelError."""
    for kind, tensor in tensors.items():
        if tensor.dtype.startswith("F8_") and kind not in (*SCALES, *IGNORED_KINDS) and tensor.dtype != NUMBERS:
            raise unsupported_model(
                f"tensor {tensor.name} in {tensor.file} has dtype {tensor.dtype}; the only 8-bit floats that are "
                f"supported are {NUMBERS}", ORIGINAL,
            )  # fmt: skip
        if tensor.dtype == NUMBERS and kind not in ("weight", *SCALES, *IGNORED_KINDS):
            raise damaged(tensor, f"has dtype {NUMBERS}, and its module has no scale for it")
    weight, scales = tensors.get("weight"), next((tensors[kind] for kind in SCALES if kind in tensors), None)
    if weight is None or (weight.dtype != NUMBERS and scales is None):
        return None
    if all(kind in tensors for kind in SCALES):
        raise damaged(weight, f"has two scales: {' and '.join(SCALES)}")
    if scales is None:
        raise damaged(weight, f"has dtype {NUMBERS}, and its module has neither weight_scale nor weight_scale_inv")
    if weight.dtype != NUMBERS:
        raise damaged(weight, f"has a scale and dtype {weight.dtype}; supported with scales is {NUMBERS}")
    return scaled_weight(weight, scales, NUMBERS, blocks)


def _blocks(folder: Path, field: str, entry: Mapping[str, Any]) -> list[Block]:
    """Return the size of the blocks that have one scale, where the scales of a weight are for blocks."""
    if str(entry.get("fmt") or "e4m3") != "e4m3":
        raise unsupported_model(
            f"the weights are quantized to 8-bit floats of format {entry['fmt']!r} ({field}), which is "
            "not supported", ORIGINAL,
        )  # fmt: skip
    size = entry.get("weight_block_size")
    if size is None:
        return [DEFAULT_BLOCK]
    if isinstance(size, list) and len(size) == 2 and all(isinstance(each, int) and each > 0 for each in size):
        return [(size[0], size[1])]
    raise ModelError(
        f"weight_block_size in {folder / 'config.json'} must be two numbers above 0, got {size!r}",
        file=str(folder / "config.json"),
    )  # fmt: skip
