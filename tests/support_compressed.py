"""write_quantized: a tiny model whose matrices are stored in a form of compressed-tensors or fp8, and its numbers.

Packers follow the formats' descriptions, one number at a time; Form.encode returns the numbers by the formula.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from support_bridged_models import BRIDGED, bridged_model
from support_models import tiny_hf_model

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest number of float8_e4m3fn."""


@dataclass(frozen=True, slots=True)
class Form:
    """How matrices are stored.

    Attributes:
        format: of compressed-tensors; "fp8" or "fbgemm_fp8" for those methods.
        bits: of a code; 8 with "float" for float8_e4m3fn.
        numbers: "int" or "float".
        block: rows and columns with one scale; 0 for all.
        zeros: "none", "packed" or "plain".
        act_order: whether columns of a group are not neighbours.
        scale: last part of the name of the scales.
        scale_dtype: their dtype.
        scale_axes: axes of the scales, where one or two would do.
        others: tensors of activations that each module has.
    """

    format: str
    bits: int
    numbers: str
    block: tuple[int, int]
    zeros: str = "none"
    act_order: bool = False
    scale: str = "weight_scale"
    scale_dtype: torch.dtype = torch.bfloat16
    scale_axes: int = 2
    others: tuple[str, ...] = ()

    @property
    def is_packed(self) -> bool:
        """Whether the codes are in words."""
        return self.format == "pack-quantized"

    def entry(self) -> dict[str, Any]:
        """Return the quantization_config."""
        if self.format in ("fp8", "fbgemm_fp8"):
            static = "static" if self.others else "dynamic"
            blocks = {"weight_block_size": list(self.block)} if all(self.block) else {}
            return {"quant_method": self.format, "activation_scheme": static, **blocks}
        rows, columns = self.block
        strategy = ("block" if rows > 1 else "group") if columns else ("channel" if rows else "tensor")
        weights = {
            "num_bits": self.bits, "type": self.numbers, "strategy": strategy, "symmetric": self.zeros == "none",
            "group_size": columns if strategy == "group" else None,
            "block_structure": list(self.block) if strategy == "block" else None,
            "actorder": "group" if self.act_order else None, "dynamic": False,
        }  # fmt: skip
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "format": self.format}
        return {
            "quant_method": "compressed-tensors", "format": self.format, "config_groups": {"group_0": group},
            "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed", "sparsity_config": {},
            "transform_config": {},
        }  # fmt: skip

    def encode(self, weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        """Return the tensors of a module by the last part of their name, and the float32 numbers that they have."""
        outputs, inputs = weight.shape
        rows, columns = self.block[0] or outputs, self.block[1] or inputs
        row_of, column_of = torch.arange(outputs) // rows, torch.arange(inputs) // columns
        if self.act_order:
            column_of = column_of[torch.randperm(inputs, generator=generator)]
        grid = (int(row_of[-1]) + 1, int(column_of.max()) + 1)
        largest = LARGEST if self.numbers == "float" else 2 ** (self.bits - 1) - 1
        scales = (0.4 + 0.2 * torch.rand(grid, generator=generator)).mul(1 / largest).to(self.scale_dtype)
        spread = scales.float()[row_of][:, column_of]
        tensors: dict[str, Tensor] = {}
        if self.numbers == "float":
            codes = (weight / spread).clamp(-LARGEST, LARGEST).to(E4M3)
            dense = codes.float() * spread
        else:
            most = 2 ** (self.bits - 1)
            zeros = torch.randint(-3, 4, grid, generator=generator) if self.zeros != "none" else torch.zeros(grid)
            points = zeros.float()[row_of][:, column_of]
            codes = (weight / spread + points).round().clamp(-most, most - 1).to(torch.int8)
            dense = (codes.float() - points) * spread
            if self.zeros == "plain":
                tensors["weight_zero_point"] = zeros.to(torch.int8)
            elif self.zeros == "packed":
                tensors["weight_zero_point"] = packed(zeros.T, self.bits).T.contiguous()
        if self.is_packed:
            tensors |= {"weight_packed": packed(codes, self.bits), "weight_shape": torch.tensor([outputs, inputs])}
        else:
            tensors["weight"] = codes
        if self.act_order:
            tensors["weight_g_idx"] = column_of.to(torch.int32)
        shape = () if self.scale_axes == 0 else (-1,) if self.scale_axes == 1 else grid
        tensors[self.scale] = scales.reshape(shape)
        return tensors | {name: torch.tensor([0.5]) for name in self.others}, dense


def packed(codes: Tensor, bits: int) -> Tensor:
    """Return signed codes in words, lowest bits first: [n, m] -> int32 [n, ceil(m * bits / 32)]."""
    in_word = 32 // bits
    rows = []
    for row in codes.tolist():
        stored = [int(code) + 2 ** (bits - 1) for code in row]
        words = [stored[start : start + in_word] for start in range(0, len(stored), in_word)]
        rows.append([sum(code << (bits * place) for place, code in enumerate(word)) for word in words])
    return torch.tensor(rows, dtype=torch.int64).to(torch.uint32).view(torch.int32)


FORMS = {
    "4-bit groups": Form("pack-quantized", 4, "int", (1, 32)),
    "4-bit rows": Form("pack-quantized", 4, "int", (1, 0)),
    "4-bit zeros": Form("pack-quantized", 4, "int", (1, 32), "packed", scale_dtype=torch.float16),
    "4-bit rows, zeros": Form("pack-quantized", 4, "int", (1, 0), "packed"),
    "4-bit plain zeros": Form("pack-quantized", 4, "int", (1, 32), "plain"),
    "4-bit order": Form("pack-quantized", 4, "int", (1, 32), act_order=True),
    "4-bit zeros, order": Form("pack-quantized", 4, "int", (1, 16), "packed", act_order=True),
    "8-bit packed": Form("pack-quantized", 8, "int", (1, 0), "packed", scale_dtype=torch.float32),
    "8-bit groups": Form("pack-quantized", 8, "int", (1, 48)),
    "int8 rows": Form("int-quantized", 8, "int", (1, 0), others=("input_scale", "input_zero_point")),
    "int8 one axis": Form("int-quantized", 8, "int", (1, 0), scale_axes=1),
    "int8 tensor": Form("int-quantized", 8, "int", (0, 0), "plain", scale_axes=1),
    "int8 groups": Form("naive-quantized", 8, "int", (1, 32), "plain"),
    "float rows": Form("float-quantized", 8, "float", (1, 0)),
    "float tensor": Form("naive-quantized", 8, "float", (0, 0), scale_axes=1, others=("input_scale",)),
    "float blocks": Form("float-quantized", 8, "float", (40, 48)),
    "fp8 scalar": Form("fp8", 8, "float", (0, 0), scale_axes=0, others=("input_scale",)),
    "fp8 rows": Form("fp8", 8, "float", (1, 0), scale_axes=1, scale_dtype=torch.float32),
    "fp8 blocks": Form("fp8", 8, "float", (40, 48), scale="weight_scale_inv", scale_dtype=torch.float32),
    "fbgemm": Form("fbgemm_fp8", 8, "float", (1, 0), others=("input_scale_ub",), scale_dtype=torch.float32),
}  # fmt: skip
"""Name -> how matrices are stored."""


def write_quantized(folder: Path, kind: str, form: Form, *, seed: int = 0, **changes: Any) -> Any:
    """Write a model of a kind (of VARIANTS or BRIDGED) and return it in float64 with the numbers of the files.

    Matrices of the layers are quantized; the embedding, the head and vectors are float32.
    """
    make = bridged_model if kind in BRIDGED and kind not in ("llama", "qwen3") else tiny_hf_model
    model = make(kind, seed, **changes)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".layers." in name and parameter.ndim == 2:
                encoded, dense = form.encode(parameter.float(), generator)
                module = name.removesuffix("weight")
                tensors |= {module + last: tensor.contiguous() for last, tensor in encoded.items()}
                parameter.copy_(dense)
            else:
                tensors[name] = parameter.float().contiguous()
    tied = model.config.tie_word_embeddings
    model.config.architectures = [type(model).__name__]
    fields = {**model.config.to_dict(), "dtype": "float32", "quantization_config": form.entry()}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file({k: v for k, v in tensors.items() if not (tied and k == "lm_head.weight")}, folder / "model.safetensors")
    return model
