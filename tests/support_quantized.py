"""Random layers packed as AWQ and GPTQ from the description of the formats, bit by bit, and models of such layers."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""For each nibble of a word, from the lowest, which of the eight outputs it holds."""

SPREAD = 0.3
"""About the difference between the largest and the smallest number of a group."""


@dataclass(frozen=True)
class Layer:
    """A packed layer.

    Attributes:
        tensors: by the last part of their names.
        dense: its numbers, float32 [O, I], each computed by itself.
    """

    tensors: dict[str, Tensor]
    dense: Tensor


@dataclass
class Spec:
    """How to pack layers; the fields are those of quantization_config.

    Attributes:
        group_size: inputs of a group; -1 for all.
        bits: of a code.
        sym: whether all zeros are in the middle.
        version: of GPTQ; 0 for AWQ.
        desc_act: whether inputs have groups in any order.
        has_g_idx: whether the file has g_idx.
        has_zeros: whether the file has qzeros.
        scales: dtype of the scales.
        rng: draws codes, zeros, scales and orders.
    """

    group_size: int = 32
    bits: int = 4
    sym: bool = False
    version: int = 0
    desc_act: bool = False
    has_g_idx: bool = True
    has_zeros: bool = True
    scales: torch.dtype = torch.float16
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def layer(self, outputs: int, inputs: int) -> Layer:
        """Draw a layer."""
        size = inputs if self.group_size == -1 else self.group_size
        groups, top = -(-inputs // size), 2**self.bits
        codes = self.rng.integers(0, top, (outputs, inputs))
        zeros = self.rng.integers(0, top, (outputs, groups))
        if self.sym or not self.has_zeros:
            zeros[:] = top // 2
        scales = torch.from_numpy(self.rng.uniform(0.5, 1.5, (outputs, groups)) * SPREAD / top).to(self.scales)
        group = np.arange(inputs) // size
        if self.desc_act:
            group = self.rng.permutation(group)
        dense = torch.from_numpy(codes - zeros[:, group]).float() * scales.float()[:, group]
        tensors = {"scales": scales.t().contiguous()}
        if self.version:
            tensors["qweight"] = torch.from_numpy(pack_stream(codes, self.bits)).t().contiguous()
            tensors["qzeros"] = torch.from_numpy(self._gptq_zeros(zeros.T))
            if self.has_g_idx:
                tensors["g_idx"] = torch.from_numpy(group.astype(np.int32))
        else:
            tensors["qweight"] = torch.from_numpy(pack_awq(codes.T))
            if self.has_zeros:
                tensors["qzeros"] = torch.from_numpy(pack_awq(zeros.T))
        return Layer(tensors, dense)

    def _gptq_zeros(self, zeros: NDArray[np.int64]) -> NDArray[np.int32]:
        """Pack zeros [G, O]. In version 1 a word is 1 smaller in each code, as one integer; 3 bits cross words."""
        if self.version == 2:
            return pack_stream(zeros, self.bits)
        if self.bits == 3:
            return pack_stream((zeros - 1) % 8, 3)
        ones = sum(1 << shift for shift in range(0, 32, self.bits))
        words = pack_stream(zeros, self.bits).view(np.uint32).astype(np.int64) - ones
        return (words % 2**32).astype(np.uint32).view(np.int32)

    def config(self, **changes: Any) -> dict[str, Any]:
        """Return the quantization_config."""
        entry: dict[str, Any] = {"bits": self.bits, "group_size": self.group_size}
        if self.version:
            name = {1: "gptq", 2: "gptq_v2"}[self.version]
            entry |= {
                "quant_method": "gptq", "checkpoint_format": name, "sym": self.sym, "desc_act": self.desc_act
            }  # fmt: skip
        else:
            entry |= {"quant_method": "awq", "version": "gemm", "zero_point": self.has_zeros}
        return entry | changes


def pack_stream(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Pack rows of codes [n, K] as a stream of bits, lowest first, int32 [n, K * bits / 32]; zeros fill the last."""
    stream = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(len(codes), -1)
    unit = 96 if bits == 3 else 32
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % unit)))
    return np.packbits(stream, axis=1, bitorder="little").view("<i4")


def pack_awq(codes: NDArray[Any]) -> NDArray[np.int32]:
    """Pack codes [n, O] of 4 bits, int32 [n, O / 8]."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.int64)
    for nibble, output in enumerate(AWQ_ORDER):
        words |= codes[:, output::8] << (4 * nibble)
    return words.astype(np.uint32).view(np.int32)


def write_layers(folder: Path, layers: dict[str, Layer], entry: dict[str, Any] | None, **others: Tensor) -> Path:
    """Write a folder with layers by module, other tensors by name, and a config.json with an entry; returns it."""
    tensors = {f"{name}.{kind}": tensor for name, layer in layers.items() for kind, tensor in layer.tensors.items()}
    save_file(tensors | others, folder / "model.safetensors", {"format": "pt"})
    content: dict[str, Any] = {"architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(content | ({"quantization_config": entry} if entry else {})))
    return folder


def write_quantized(
    folder: Path, model: Any, spec_of: Callable[[str], Spec | None], entry: dict[str, Any]
) -> Any:  # fmt: skip
    """Write a transformers model with packed layers and give it their numbers; returns it.

    Args:
        folder: gets config.json and model.safetensors.
        model: in float64.
        spec_of: name of a linear module -> how it is packed; None for a plain one. Plain tensors are float16.
        entry: the quantization_config.
    """
    tensors: dict[str, Tensor] = {}
    packed = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and (spec := spec_of(name)) is not None:
            packed[f"{name}.weight"] = layer = spec.layer(*module.weight.shape)
            tensors |= {f"{name}.{kind}": tensor for kind, tensor in layer.tensors.items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in packed:
                parameter.copy_(packed[name].dense)
            else:
                tensors[name] = parameter.half()
                parameter.copy_(tensors[name])
    model.config.save_pretrained(folder)
    content = json.loads((folder / "config.json").read_text())
    content |= {"architectures": [type(model).__name__], "dtype": "float16", "quantization_config": entry}
    (folder / "config.json").write_text(json.dumps(content))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return model
