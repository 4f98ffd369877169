"""fingerprint: depends on weights, config and options, and not on the folder or the times of files."""

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from chairlift.model.weights.checkpoint_fingerprint import fingerprint
from support_checkpoints import rewrite
from support_models import save_tiny
from support_quantized import Spec, write_layers

NORM = "model.norm.weight"

QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_tiny("llama", tmp_path / "llama", seed=1)


def test_a_fingerprint_is_that_of_the_contents(llama: Path, tmp_path: Path) -> None:
    """Copies on other machines have other times; trained weights have the same names and sizes."""
    rewrite(llama, lambda tensors: None)  # in the form of later rewrites
    copy = tmp_path / "copy"
    shutil.copytree(llama, copy, copy_function=shutil.copyfile)
    os.utime(copy / "model.safetensors", (0, 0))
    original = fingerprint(llama, "float32 None")
    assert fingerprint(copy, "float32 None") == original != fingerprint(copy, "float32 int8")
    for name in (NORM, QUERY):
        size = (copy / "model.safetensors").stat().st_size
        rewrite(copy, lambda tensors, name=name: tensors.update({name: tensors[name] * 1.001}))
        assert (copy / "model.safetensors").stat().st_size == size
        assert fingerprint(copy, "float32 None") != original, name
        rewrite(copy, lambda tensors, name=name: tensors.update({name: load_file(llama / "model.safetensors")[name]}))
        assert fingerprint(copy, "float32 None") == original
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**config, "rope_theta": 5.0}), encoding="utf-8")
    assert fingerprint(copy, "float32 None") != original


def test_the_names_of_files_do_not_count(llama: Path) -> None:
    original = fingerprint(llama, "float32 none")
    (llama / "model.safetensors").rename(llama / "renamed.safetensors")
    assert fingerprint(llama, "float32 none") == original
    (llama / "renamed.safetensors").rename(llama / "model.safetensors")
    rewrite(llama, lambda tensors: tensors.update({NORM: tensors[NORM] * 1.001}))
    assert fingerprint(llama, "float32 none") != original


def test_a_quantization_beside_config_json_is_part_of_it(tmp_path: Path) -> None:
    spec = Spec(version=1)
    write_layers(tmp_path, {"model.layers.0.mlp.up_proj": spec.layer(64, 64)}, None)
    names = []
    for changes in ({}, {"checkpoint_format": "gptq_v2"}, {}):
        (tmp_path / "quantize_config.json").write_text(json.dumps(spec.config(**changes)))
        names.append(fingerprint(tmp_path, "bfloat16"))
    assert names[0] == names[2] != names[1]
