"""tensors_by_module: tensors of a folder by the canonical name of their module."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from chairlift.core.errors import ModelError
from chairlift.model.weights.formats.tensors_by_module import tensors_by_module


def test_tensors_of_a_module_stand_together(tmp_path: Path) -> None:
    names = ("layers.0.q_proj.qweight", "layers.0.q_proj.scales", "model.norm.weight", "lm_head.weight")
    save_file({name: torch.zeros(2) for name in names}, tmp_path / "model.safetensors")
    found = tensors_by_module(tmp_path, "LlamaForCausalLM")
    assert {module: set(tensors) for module, tensors in found.items()} == {
        "model.layers.0.q_proj": {"qweight", "scales"}, "model.norm": {"weight"}, "lm_head": {"weight"},
    }  # fmt: skip
    assert found["lm_head"]["weight"].name == "lm_head.weight"


def test_a_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    for number, value in ((1, 1.0), (2, 9.0)):
        tensors = {"model.layers.0.q_proj.weight_scale": torch.tensor(value), f"other.{number}": torch.zeros(1)}
        save_file(tensors, tmp_path / f"model-0000{number}-of-00002.safetensors")
    places = {"model.layers.0.q_proj.weight_scale": 1, "other.1": 1, "other.2": 2}
    index = {name: f"model-0000{number}-of-00002.safetensors" for name, number in places.items()}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(ModelError, match=r"q_proj\.weight_scale is stored twice: in model-00001.* and model-00002"):
        tensors_by_module(tmp_path, "LlamaForCausalLM")
