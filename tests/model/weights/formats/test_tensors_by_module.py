"""tensors_by_module: tensors of a folder by the canonical name of their module."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from chairlift.model.weights.formats.tensors_by_module import tensors_by_module


def test_tensors_of_a_module_stand_together(tmp_path: Path) -> None:
    names = ("layers.0.q_proj.qweight", "layers.0.q_proj.scales", "model.norm.weight", "lm_head.weight")
    save_file({name: torch.zeros(2) for name in names}, tmp_path / "model.safetensors")
    found = tensors_by_module(tmp_path, "LlamaForCausalLM")
    assert {module: set(tensors) for module, tensors in found.items()} == {
        "model.layers.0.q_proj": {"qweight", "scales"}, "model.norm": {"weight"}, "lm_head": {"weight"},
    }  # fmt: skip
    assert found["lm_head"]["weight"].name == "lm_head.weight"
