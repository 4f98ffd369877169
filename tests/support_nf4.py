"""Weights of bitsandbytes, packed from the description of the format, and tiny models of such weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from support_models import tiny_hf_model

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Numbers of the paper QLoRA."""

FP4 = tuple(sign * size for sign in (1, -1) for size in (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4))
"""One bit of sign, two of exponent, one of mantissa, divided by the largest number."""

TABLES = {"nf4": torch.tensor(NF4), "fp4": torch.tensor(FP4)}
NESTED_TABLE = torch.linspace(-1, 1, 256) ** 3

METHODS: dict[str, dict[str, Any]] = {
    "nf4": {}, "fp4": {"kind": "fp4"}, "nf4 nested": {"nested_size": 256},
    "nf4 in bfloat16": {"storage": torch.bfloat16, "nested_size": 32, "block_size": 128},
}  # fmt: skip
"""Name -> arguments of packed_4bit."""


def packed_4bit(
    weight: Tensor, *, kind: str = "nf4", block_size: int = 64, nested_size: int | None = None,
    storage: torch.dtype = torch.uint8,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the tensors of a weight [O, I] by the end of their names; that of the codes is "".

    Args:
        weight: float32.
        kind: nf4 or fp4.
        block_size: numbers with one absmax.
        nested_size: blocks with one nested absmax; None without double quantization.
        storage: dtype of the tensor with the codes.
    """
    state: dict[str, Any] = {
        "quant_type": kind, "blocksize": block_size, "dtype": "bfloat16", "shape": list(weight.shape),
    }  # fmt: skip
    blocks = torch.cat((weight.reshape(-1), torch.zeros(-weight.numel() % block_size))).view(-1, block_size)
    absmax = blocks.abs().amax(dim=1)
    codes = _nearest(blocks / absmax.clamp(min=1e-30)[:, None], TABLES[kind]).view(-1)[: weight.numel()]
    codes = torch.cat((codes, torch.zeros(len(codes) % 2, dtype=codes.dtype)))
    packed = (codes[::2] * 16 + codes[1::2]).to(torch.uint8)
    made = {"": packed.view(storage).view(-1, 1), ".absmax": absmax, ".quant_map": TABLES[kind]}
    if nested_size is not None:
        offset = absmax.mean()
        nested = torch.cat((absmax - offset, torch.zeros(-len(absmax) % nested_size))).view(-1, nested_size)
        made[".nested_absmax"] = nested.abs().amax(dim=1)
        codes = _nearest(nested / made[".nested_absmax"].clamp(min=1e-30)[:, None], NESTED_TABLE)
        made[".absmax"] = codes.view(-1)[: len(absmax)].to(torch.uint8)
        made[".nested_quant_map"] = NESTED_TABLE
        state |= {"nested_blocksize": nested_size, "nested_dtype": "float32", "nested_offset": offset.item()}
    return {**made, f".quant_state.bitsandbytes__{kind}": json_tensor(state)}


def numbers_4bit(parts: dict[str, Tensor]) -> Tensor:
    """Return the numbers, float32 [O, I], that packed tensors mean: each by the formula of the format."""
    name = next(name for name in parts if name.startswith(".quant_state"))
    state = json.loads(bytes(parts[name].tolist()))
    index = np.arange(int(np.prod(state["shape"])))
    data = array(parts[""].view(torch.uint8)).reshape(-1)
    codes = np.where(index % 2 == 0, data[index // 2] >> 4, data[index // 2] & 15)
    absmax = array(parts[".absmax"])
    if ".nested_absmax" in parts:
        factors = array(parts[".nested_absmax"])[np.arange(len(absmax)) // state["nested_blocksize"]]
        absmax = array(parts[".nested_quant_map"])[absmax] * factors + np.float32(state["nested_offset"])
    numbers = array(parts[".quant_map"])[codes] * absmax[index // state["blocksize"]]
    assert numbers.dtype == np.float32
    return torch.from_numpy(numbers.reshape(state["shape"]))


def packed_int8(weight: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a module with a weight [O, I] in float32, by the last part of their names."""
    scales = weight.abs().amax(dim=1)
    codes = (weight * (127 / scales[:, None])).round().to(torch.int8)
    return {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}


def numbers_int8(parts: dict[str, Tensor]) -> Tensor:
    """Return the numbers, float32 [O, I], that packed tensors mean."""
    codes, scales = array(parts["weight"]).astype(np.float32), array(parts["SCB"])
    return torch.from_numpy(codes * scales[:, None] * np.float32(1 / 127))


def write_bitsandbytes(folder: Path, kind: str, method: str, **changes: Any) -> Any:
    """Write a model of a kind (support_models.VARIANTS) as transformers saves it; return it in float64 as stored.

    Args:
        folder: is made.
        kind: the architecture.
        method: of METHODS, or "int8".
        changes: fields of the config.
    """
    tiny_hf_model(kind, 0, torch.float32, **changes).save_pretrained(folder)
    model = tiny_hf_model(kind, 0, torch.float64, **changes)
    parameters, tensors = dict(model.named_parameters()), load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors.pop(name)
        if method == "int8":
            parts = packed_int8(weight)
            numbers, start = numbers_int8(parts), name.removesuffix("weight")
        else:
            parts = packed_4bit(weight, **METHODS[method])
            numbers, start = numbers_4bit(parts), name
        tensors |= {start + end: part.clone() for end, part in parts.items()}
        with torch.no_grad():
            parameters[name].copy_(numbers)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    size = "load_in_8bit" if method == "int8" else "load_in_4bit"
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", size: True})
    return model


def change_config(folder: Path, **fields: Any) -> None:
    """Replace fields of a folder's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def json_tensor(content: object) -> Tensor:
    """Return JSON, or bytes, as uint8."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return torch.tensor(list(data), dtype=torch.uint8)


def array(tensor: Tensor) -> NDArray[Any]:
    """Return the numbers for numpy."""
    return tensor.numpy()


def _nearest(numbers: Tensor, table: Tensor) -> Tensor:
    return torch.stack([(row[:, None] - table).abs().argmin(dim=1) for row in numbers])
