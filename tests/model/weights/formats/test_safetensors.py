"""The format safetensors: names in files, numbers of whole tensors and of parts. Faults: weights/test_checkpoint.py."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from chairlift.model.weights.formats.safetensors import canonical_name, claims, stored_weights


def test_a_weight_says_how_it_is_stored_and_reads_a_part(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(4, 3)
    save_file({"layers.0.w": table.half(), "w": table.to(torch.int16)}, tmp_path / "model.safetensors")
    assert claims(tmp_path)
    found = dict(stored_weights(tmp_path, "LlamaForCausalLM"))
    weight, other = found["model.layers.0.w"], found["w"]
    assert (weight.file.name, weight.name, weight.shape) == ("model.safetensors", "layers.0.w", (4, 3))
    assert (weight.dtype, weight.dense_dtype) == ("F16", "float16")
    assert torch.equal(weight.dense(), table.half())
    assert torch.equal(weight.dense((slice(1, 3), slice(0, 2))), table.half()[1:3, :2])
    assert (other.dtype, other.dense_dtype) == ("I16", None)


def test_names_of_the_wrapper_map_to_the_architecture_s_names() -> None:
    wrapper = "Gemma3ForConditionalGeneration"
    for prefix in ("language_model.model.", "model.language_model.", "model."):
        assert canonical_name(f"{prefix}norm.weight", wrapper) == "model.norm.weight"
    assert canonical_name("language_model.lm_head.weight", wrapper) == "lm_head.weight"
    assert canonical_name("lm_head.weight", wrapper) == "lm_head.weight"
    for left_out in ("vision_tower.a", "model.vision_tower.a", "multi_modal_projector.a"):
        assert canonical_name(left_out, wrapper) is None
        assert canonical_name(left_out, "LlamaForCausalLM") == left_out
