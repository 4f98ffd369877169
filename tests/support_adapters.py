"""ADAPTER_KINDS, adapted_model: LoRA adapters of tiny models, made by PEFT itself with random numbers."""

from pathlib import Path
from typing import Any

import peft
import torch
from torch import nn

from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.layers.adapted_decoder import AdaptedDecoder
from chairlift.model.layers.ops import TorchOps
from chairlift.model.loading.model_building import load_model
from chairlift.model.lora.base_weights import base_weights
from chairlift.model.lora.peft_adapter import AdapterTargets, read_adapter
from support_models import tiny_hf_model

ADAPTER_KINDS: dict[str, dict[str, Any]] = {
    "all": {"r": 4, "lora_alpha": 6},
    "q and v": {"r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "regex, rslora": {
        "r": 64, "use_rslora": True, "target_modules": r".*\.(self_attn|linear_attn|mamba|conv)\.\w*proj\w*",
    },
    "patterns": {
        "r": 4, "lora_alpha": 2, "rank_pattern": {"down_proj": 3, "layers.1.*": 7}, "alpha_pattern": {"o_proj": 11},
    },
    "dora": {"r": 4, "use_dora": True},
    "some layers": {"r": 2, "layers_to_transform": [1]},
    "embedding": {"r": 4, "more_targets": ["embed_tokens"]},
    "lm_head": {"r": 4, "more_targets": ["lm_head"]},
    "saved": {"r": 4, "modules_to_save": ["lm_head", "embed_tokens"]},
}  # fmt: skip
"""Arguments of peft.LoraConfig; without target_modules all projections are targets, with `more_targets`."""

OF_EXPERTS = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "input_linear", "output_linear"}
"""Names that PEFT takes for those of experts in a model that has some, whose adapters are not supported."""


def adapted_model(kind: str, model_seed: int, fields: dict[str, Any], seed: int, projections: Any) -> Any:
    """Return PEFT's model of a tiny model in float64, with random adapter weights.

    Args:
        kind: of VARIANTS.
        model_seed: of the tiny model's weights.
        fields: of ADAPTER_KINDS.
        seed: of the adapter's numbers.
        projections: names of the modules that our model adapts, in transformers' names.
    """
    model = tiny_hf_model(kind, model_seed)
    own = dict(fields)
    more = own.pop("more_targets", [])
    linear = {name.split(".")[-1] for name, module in model.named_modules()
              if isinstance(module, nn.Linear) and name in projections and name != "lm_head"}  # fmt: skip
    if getattr(model.config, "num_local_experts", None) or getattr(model.config, "num_experts", None):
        linear -= {
            "gate_proj",
            "up_proj",
            "down_proj",
            "w1",
            "w2",
            "w3",
            "input_linear",
            "output_linear",
        }  # of experts, too
    if "qkv_proj" in linear and "q_proj" in own.get("target_modules", ()):
        own["target_modules"] = ["qkv_proj"]
    own.setdefault("target_modules", sorted(linear) + more)
    made = peft.get_peft_model(model, peft.LoraConfig(**own, task_type="CAUSAL_LM"), autocast_adapter_dtype=False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(made.named_parameters()):
            if "lora_magnitude" in name:
                parameter.mul_(0.5 + torch.rand(parameter.shape, generator=generator))
            elif "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
            elif "modules_to_save" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return made.eval()


def add_adapter(model: AdaptedDecoder, config: Any, base: Path, number: int, folder: Path) -> None:
    """Read an adapter's folder and add it to a model of the folder `base`."""
    weights = base_weights(base, config, model.adaptable, torch.float64)
    model.add_adapter(number, read_adapter(folder, AdapterTargets(config, model.adaptable, weights)).weights)


def adaptable_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the projections of a model's folder that adapters may change, with their outputs and inputs."""
    model, _ = load_model(
        folder, dtype="float32", device=torch.device("cpu"), max_model_len=None,
        choose_backend=lambda _: TorchBackend(TorchOps(), adapts=True),
    )  # fmt: skip
    assert isinstance(model, AdaptedDecoder)
    return dict(model.adaptable)
