"""file_parts: the tensors that llama.cpp's converter writes for a model of transformers, as views of its parameters.

Facts about what the converter changes are those of conversion/ in llama.cpp: pairs of rows of llama's queries and keys,
1 added to norms of Gemma and Qwen3.5, values of gated delta nets in another order, -exp(A_log), experts one by one.
"""

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PAIRED = ("llama", "smollm3", "granite", "granitemoe", "granitehybrid", "mistral3")
"""Architectures whose queries and keys are in pairs of rows."""

OFFSET = ("gemma2", "gemma3", "qwen35", "qwen35moe", "qwen3next")
"""Architectures to whose norms 1 is added."""

RENAMED = {
    ".self_attn.sinks": ".self_attn.sinks.weight", ".dt_bias": ".dt_proj.bias",
    "shared_mlp.output_linear": "shared_expert.down_proj", "block_sparse_moe.router.weight": "mlp.gate.weight",
    "block_sparse_moe.router.layer": "mlp.gate", "mlp.router.": "mlp.gate.", ".conv.conv.": ".conv.conv.",
}  # fmt: skip


@dataclass
class FilePart:
    """A tensor of the file.

    Attributes:
        name: in the file.
        view: of the parameter that has the numbers; what is written to it changes the model.
        rows: index in the view of each row of the file; None for all in order.
        columns: the same for columns.
        offset: is added.
        is_decay: whether the file has -exp of the numbers.
        shape: in the file, if it is another one.
    """

    name: str
    view: Tensor
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None
    offset: float = 0.0
    is_decay: bool = False
    shape: tuple[int, ...] | None = None

    def stored(self) -> NDArray[np.float32]:
        """Return the numbers of the file, float32."""
        numbers = self.view.detach().double().numpy()
        numbers = numbers if self.rows is None else numbers[self.rows]
        numbers = numbers if self.columns is None else numbers[:, self.columns]
        numbers = -np.exp(numbers) if self.is_decay else numbers + self.offset
        return np.ascontiguousarray(numbers.astype(np.float32).reshape(self.shape or numbers.shape))

    def put_back(self, numbers: NDArray[np.float32]) -> None:
        """Give the model the numbers that a type of the file can hold."""
        sizes = tuple(self.view.shape) if self.rows is None else (len(self.rows), *self.view.shape[1:])
        found = torch.from_numpy(numbers.astype(np.float64).reshape(sizes))
        found = (-found).log() if self.is_decay else found - self.offset
        with torch.no_grad():
            if self.rows is not None:
                self.view[torch.from_numpy(self.rows)] = found
            elif self.columns is not None:
                self.view[:, torch.from_numpy(self.columns)] = found
            else:
                self.view.copy_(found)


def file_parts(model: Any, architecture: str, *, keeps_joined: bool = False) -> list[FilePart]:
    """Return the tensors of a file of this architecture; the model is in float64."""
    config, found = model.config, list[FilePart]()
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    buffers = {name: each for name, each in model.named_buffers() if name.endswith("expert_bias")}
    for parameter, tensor in {**dict(model.named_parameters()), **buffers}.items():
        for name, view in _split(parameter, tensor.detach(), config, architecture):
            stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert stored is not None, f"{name} of {parameter}"
            rows, columns = _order(name, view, config, architecture)
            if name.endswith(".in_proj_qkvz.weight") and not keeps_joined:
                found += _of_joined(name, view, config)
                continue
            has_offset = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
            part = FilePart(
                str(stored), view, rows, columns, 1.0 if has_offset and architecture in OFFSET else 0.0,
                is_decay=name.endswith(".A_log"),
            )  # fmt: skip
            if name.endswith((".mamba.A_log", ".mamba.D")):
                part.shape = (len(view), 1)
            elif name.endswith(".mamba.norm.weight"):
                part.shape = (config.mamba_n_groups, len(view) // config.mamba_n_groups)
            elif "conv" in name and view.ndim == 3:
                part.shape = (view.shape[0], view.shape[2])
            found.append(part)
    return found


def _split(parameter: str, tensor: Tensor, config: Any, architecture: str) -> list[tuple[str, Tensor]]:
    """Return the parts of a parameter that the converter writes, under names of transformers."""
    name = parameter
    for old, new in RENAMED.items():
        name = name.replace(old, new)
    is_dense = getattr(config, "num_local_experts", 1) == 0
    experts = name.rpartition(".experts.")[0].replace("block_sparse_moe", "mlp")
    if name.endswith("experts.gate_up_proj_bias"):
        return [
            (f"{experts}.experts.gate_proj.bias", tensor[:, ::2]),
            (f"{experts}.experts.up_proj.bias", tensor[:, 1::2]),
        ]
    if name.endswith("experts.down_proj_bias"):
        return [(f"{experts}.experts.down_proj.bias", tensor)]
    if name.endswith("experts.gate_up_proj") and architecture == "gpt-oss":
        rows = tensor.transpose(1, 2)
        return [
            (f"{experts}.experts.gate_proj.weight", rows[:, ::2]),
            (f"{experts}.experts.up_proj.weight", rows[:, 1::2]),
        ]
    if name.endswith("experts.down_proj"):
        return [
            (f"{experts}.experts.down_proj.weight", tensor.transpose(1, 2) if architecture == "gpt-oss" else tensor)
        ]
    if name.endswith(("experts.gate_up_proj", "block_sparse_moe.input_linear.weight")):
        experts = experts or name.partition(".block_sparse_moe")[0] + ".mlp"
        gate, up = tensor.chunk(2, dim=1)
        return [(f"{experts}.experts.gate_proj.weight", gate), (f"{experts}.experts.up_proj.weight", up)]
    if name.endswith("block_sparse_moe.output_linear.weight"):
        return [(name.partition(".block_sparse_moe")[0] + ".mlp.experts.down_proj.weight", tensor)]
    if name.endswith("shared_mlp.input_linear.weight"):
        layer = name.partition(".shared_mlp")[0]
        module = f"{layer}.mlp" if is_dense else f"{layer}.mlp.shared_expert"
        gate, up = tensor.chunk(2)
        return [(f"{module}.gate_proj.weight", gate), (f"{module}.up_proj.weight", up)]
    if is_dense and "shared_expert.down_proj" in name:
        return [(name.replace("shared_expert", "mlp"), tensor)]
    if "shared_expert.down_proj" in name and ".mlp." not in name:
        return [(name.replace("shared_expert", "mlp.shared_expert"), tensor)]
    return [(name.replace("block_sparse_moe.gate.", "mlp.gate."), tensor)]


def _of_joined(name: str, view: Tensor, config: Any) -> list[FilePart]:
    """Return queries, keys and values, and the gates, of which Qwen3-Next has those of one key head together."""
    groups, width = config.linear_num_key_heads, config.linear_key_head_dim
    shared = config.linear_num_value_heads // groups * config.linear_value_head_dim
    rows = np.arange(len(view)).reshape(groups, -1)
    query, key, value, gate = np.split(rows, np.cumsum([width, width, shared]), axis=1)
    joined = np.concatenate([each.reshape(-1) for each in (query, key, value)])
    layer = name.split(".")[2]
    return [FilePart(f"blk.{layer}.attn_qkv.weight", view, joined),
            FilePart(f"blk.{layer}.attn_gate.weight", view, gate.reshape(-1))]  # fmt: skip


def _order(
    name: str, view: Tensor, config: Any, architecture: str
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Return the rows and the columns of a tensor in the order of the file."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if architecture in PAIRED and heads is not None:
        return np.arange(len(view)).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1), None
    if architecture not in ("qwen35", "qwen35moe") or ".linear_attn." not in name:
        return None, None
    keys, values, width = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    first = 2 * keys * config.linear_key_head_dim

    def tiled(size: int, start: int = 0) -> NDArray[np.int64]:
        of_values = start + np.arange(values * size).reshape(keys, values // keys, size).swapaxes(0, 1).reshape(-1)
        return np.concatenate([np.arange(start), of_values])

    module = name.partition(".linear_attn.")[2]
    if module in ("in_proj_qkv.weight", "conv1d.weight"):
        return tiled(width, first), None
    if module == "in_proj_z.weight":
        return tiled(width), None
    if module in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_proj.bias"):
        return tiled(1), None
    return None, tiled(width) if module == "out_proj.weight" else None
