"""transformers' own layers of experts with random weights, tiny, and loaders of their tensors by canonical name."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chairlift.model.config.architectures.granite_hybrid import GRANITE_EXPERTS
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.architectures.unregistered_experts import (
    DEEPSEEK_V3_EXPERTS,
    GLM4_MOE_EXPERTS,
    GLM4_MOE_LITE_EXPERTS,
    LFM2_MOE_EXPERTS,
    QWEN2_MOE_EXPERTS,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.experts_config import ExpertFields, ExpertsConfig, read_experts
from chairlift.model.weights.formats.stacked_experts import canonical_experts
from chairlift.model.weights.parameter_loader import ParameterLoader
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import DenseOnly

HIDDEN = 24
NAME = "model.layers.0.mlp"

EXPERTS: Mapping[str, ExpertFields] = {
    **{name: each.experts for name, each in ARCHITECTURES.items() if each.experts is not None},
    "Qwen2MoeForCausalLM": QWEN2_MOE_EXPERTS, "GraniteMoeForCausalLM": GRANITE_EXPERTS,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3_EXPERTS, "Glm4MoeForCausalLM": GLM4_MOE_EXPERTS,
    "Glm4MoeLiteForCausalLM": GLM4_MOE_LITE_EXPERTS, "Lfm2MoeForCausalLM": LFM2_MOE_EXPERTS,
}  # fmt: skip


@dataclass(frozen=True)
class HeldWeight(DenseOnly):
    """A StoredWeight in memory."""

    name: str
    tensor: Tensor

    @property
    def file(self) -> Path:
        return Path("memory.safetensors")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        return "F64"

    @property
    def dense_dtype(self) -> str:
        return "float64"

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        return self.tensor if part is None else self.tensor[part]


@dataclass(frozen=True)
class Layout:
    """Where transformers has the layer of an architecture.

    Attributes:
        model: its module's name.
        config, block: classes in it.
        fields: of config.json, tiny.
        prefix: of the block's tensors in the whole model's names, without `model.layers.0.`.
    """

    model: str
    config: str
    block: str
    fields: Mapping[str, Any]
    prefix: str = "mlp"


_QWEN = {"num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "intermediate_size": 40}
_DEEPSEEK = {
    "n_routed_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 20, "n_shared_experts": 2,
    "intermediate_size": 40,
}  # fmt: skip
_GRANITE = {"num_local_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 20}

LAYOUTS: Mapping[str, Layout] = {
    "MixtralForCausalLM": Layout(
        "mixtral", "MixtralConfig", "MixtralSparseMoeBlock",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 20},
    ),
    "Qwen2MoeForCausalLM": Layout(
        "qwen2_moe", "Qwen2MoeConfig", "Qwen2MoeSparseMoeBlock", {**_QWEN, "shared_expert_intermediate_size": 28}
    ),
    "Qwen3MoeForCausalLM": Layout("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeSparseMoeBlock", _QWEN),
    "OlmoeForCausalLM": Layout(
        "olmoe", "OlmoeConfig", "OlmoeSparseMoeBlock",
        {"num_experts": 9, "num_experts_per_tok": 3, "intermediate_size": 20},
    ),
    "Qwen3NextForCausalLM": Layout(
        "qwen3_next", "Qwen3NextConfig", "Qwen3NextSparseMoeBlock", {**_QWEN, "shared_expert_intermediate_size": 28}
    ),
    "Qwen3_5MoeForCausalLM": Layout(
        "qwen3_5_moe", "Qwen3_5MoeTextConfig", "Qwen3_5MoeSparseMoeBlock",
        {**_QWEN, "shared_expert_intermediate_size": 28},
    ),
    "GptOssForCausalLM": Layout(
        "gpt_oss", "GptOssConfig", "GptOssMLP",
        {"num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 20},
    ),
    "GraniteMoeForCausalLM": Layout(
        "granitemoe", "GraniteMoeConfig", "GraniteMoeMoE", _GRANITE, "block_sparse_moe"
    ),
    "DeepseekV3ForCausalLM": Layout(
        "deepseek_v3", "DeepseekV3Config", "DeepseekV3MoE", {**_DEEPSEEK, "n_group": 3, "topk_group": 2}
    ),
    "Glm4MoeForCausalLM": Layout(
        "glm4_moe", "Glm4MoeConfig", "Glm4MoeMoE", {**_DEEPSEEK, "n_group": 1, "topk_group": 1}
    ),
    "Lfm2MoeForCausalLM": Layout(
        "lfm2_moe", "Lfm2MoeConfig", "Lfm2MoeSparseMoeBlock",
        {**_QWEN, "routed_scaling_factor": 1.5}, "feed_forward",
    ),
}  # fmt: skip
"""Architecture -> transformers' layer of experts; Granite 4 and Gemma 4 have theirs inside a decoder layer."""


def classes(layout: Layout) -> tuple[Any, Any]:
    """Return the classes of the config and of the layer."""
    path = f"transformers.models.{layout.model}"
    return (
        getattr(importlib.import_module(f"{path}.configuration_{layout.model}"), layout.config),
        getattr(importlib.import_module(f"{path}.modeling_{layout.model}"), layout.block),
    )


def hf_layer(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """Return transformers' layer of an architecture in float64."""
    layout = LAYOUTS[architecture]
    make_config, make_block = classes(layout)
    config = make_config(**{**layout.fields, "hidden_size": HIDDEN, **changes})
    config._experts_implementation = "eager"
    return randomized(make_block(config).double().eval(), seed)


def randomized(module: Any, seed: int) -> Any:
    """Fill all parameters and buffers with random numbers that make experts differ."""
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            numbers = torch.randn(tensor.shape, generator=dice, dtype=torch.float64)
            if "scale" in name:
                numbers = numbers * 0.2 + 1.0
            elif "correction" in name or "expert_bias" in name:
                numbers = numbers * 0.1
            elif tensor.ndim == 3 or "shared" in name:
                numbers = numbers * 0.4
            tensor.copy_(numbers)
    return module


def config_of(architecture: str, **changes: Any) -> ExpertsConfig:
    """Return the config of hf_layer."""
    fields = {**LAYOUTS[architecture].fields, **changes}
    config = read_experts(EXPERTS[architecture], ConfigReader(fields, EXPERTS[architecture].defaults))
    assert config is not None
    return config


def canonical_tensors(architecture: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of a whole model's names by canonical names."""
    stored = ((name, HeldWeight(name, tensor)) for name, tensor in tensors.items())
    return {name: each.dense() for name, each in canonical_experts(EXPERTS[architecture], stored)}


def layer_tensors(architecture: str, module: Any) -> dict[str, Tensor]:
    """Return the tensors of hf_layer by canonical name."""
    prefix = LAYOUTS[architecture].prefix
    named = {f"model.layers.0.{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}
    return canonical_tensors(architecture, named)


def loader_of(tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float64) -> ParameterLoader:
    """Return a loader of tensors in a dtype, which fails for another shape."""

    def reads(to: torch.dtype) -> Callable[[str, tuple[int, ...]], Tensor]:
        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            assert tuple(tensors[name].shape) == shape, name
            return tensors[name].to(to)

        return read

    return ParameterLoader(reads(dtype), read_float32=reads(torch.float32))


def output_of(module: Any, x: Tensor) -> Tensor:
    """Return what transformers' layer makes of rows x [T, H]."""
    with torch.no_grad():
        found = module(x[None])
    out: Tensor = (found[0] if isinstance(found, tuple) else found)[0]
    return out
