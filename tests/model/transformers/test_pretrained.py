"""load_pretrained, make_without_weights: tensors that do not fit are named, and no code of a folder is a decoder."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.transformers_config import parse_transformers_config
from chairlift.model.transformers.pretrained import load_pretrained, make_without_weights, weights_dtype
from support_bridged_models import bridged_model, save_bridged
from support_compressed import FORMS, write_quantized
from support_models import save_tiny

UP = "model.layers.1.mlp.up_proj.weight"
OWN_CODE = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}


def change_config(folder: Path, **fields: Any) -> Path:
    content = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def loaded(folder: Path, dtype: str = "float32") -> Any:
    shape = parse_transformers_config(json.loads((folder / "config.json").read_text()))
    shape = replace(shape, dtype=weights_dtype(folder, shape, dtype))
    return load_pretrained(folder, shape, RunnerConfig(model=str(folder)), torch.device("cpu"))


def without_weights(folder: Path) -> Any:
    return make_without_weights(folder, json.loads((folder / "config.json").read_text())["architectures"][0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_bridged("olmo2", tmp_path)


@pytest.mark.parametrize("shard_size", ["5GB", "60KB"])
def test_one_file_and_shards_have_the_weights_that_were_saved(shard_size: str, tmp_path: Path) -> None:
    model = bridged_model("olmo2", dtype=torch.float32)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_size == "60KB")
    made = loaded(tmp_path)
    assert not made.training and made.config._attn_implementation == "eager"
    assert all(torch.equal(made.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_a_tied_head_need_not_be_in_the_file(tmp_path: Path) -> None:
    folder = save_bridged("olmo2", tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    made = loaded(folder)
    assert made.lm_head.weight.data_ptr() == made.model.embed_tokens.weight.data_ptr()
    with pytest.raises(ModelError, match=r"1 tensors of Olmo2ForCausalLM are missing in .*, the first is lm_head"):
        loaded(change_config(folder, tie_word_embeddings=False))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder: Path) -> None:
    with pytest.raises(
        ModelError, match=r"tensor lm_head\.weight in .* has shape \(304, 64\), .* requires \(400, 64\)"
    ):
        loaded(change_config(folder, vocab_size=400))


def test_a_quantized_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({UP: tensors[UP].to(torch.float8_e4m3fn)}))
    with pytest.raises(ModelError, match=f"tensor {UP} in .* has dtype F8_E4M3"):
        loaded(folder)


@pytest.mark.parametrize("field", ["quantization_config", "compression_config"])
@pytest.mark.parametrize("form", ["4-bit zeros", "fp8 blocks"])
@pytest.mark.parametrize("kind", ["phi3", "olmo2"])
def test_quantized_folders_have_the_numbers_of_their_formula(
    kind: str, form: str, field: str, tmp_path: Path
) -> None:  # fmt: skip
    model = write_quantized(tmp_path, kind, FORMS[form])
    content = json.loads((tmp_path / "config.json").read_text())
    content[field] = content.pop("quantization_config")
    (tmp_path / "config.json").write_text(json.dumps(content))
    made = loaded(tmp_path, "float64").state_dict()
    assert any(name.endswith("qkv_proj.weight") for name in made) == (kind == "phi3")
    for name, numbers in model.state_dict().items():
        assert torch.equal(made[name], numbers), name


@pytest.mark.parametrize(
    "fields", [{"max_position_embeddings": None}, {"model_type": "nothing"}, {"rms_norm_eps": "x"}]
)
def test_any_exception_of_transformers_is_a_model_error(fields: dict[str, Any], folder: Path) -> None:
    change_config(folder, **fields)
    for make in (loaded, without_weights):
        with pytest.raises(ModelError, match=f"transformers cannot load {folder}: "):
            make(folder)


@pytest.mark.parametrize("make", [loaded, without_weights])
def test_a_class_that_is_code_in_the_folder_is_refused(make: Any, folder: Path) -> None:
    change_config(folder, auto_map=OWN_CODE)
    assert type(make(folder)).__name__ == "Olmo2ForCausalLM"  # the library has the class of this name
    change_config(folder, architectures=["XForCausalLM"])
    with pytest.raises(UnsupportedArchitecture, match="XForCausalLM is code in the model folder"):
        make(folder)
    change_config(folder, auto_map={"AutoConfig": "configuration_x.XConfig"})
    assert type(make(folder)).__name__ == "Olmo2ForCausalLM"


def test_a_type_that_another_class_of_transformers_computes_runs(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path)
    change_config(folder, model_type="internlm3", architectures=["InternLM3ForCausalLM"], auto_map=OWN_CODE)
    assert type(without_weights(folder)).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize("text", ["{", "[]", '{"eos_token_id": [1, null]}', '{"temperature": "hot"}'])
def test_the_folders_generation_config_is_not_needed_for_its_weights(text: str, folder: Path) -> None:
    (folder / "generation_config.json").write_text(text)
    assert loaded(folder) is not None
