"""GroupedWeight: codes of every width, parts and chunks, damaged scales, groups."""

from pathlib import Path

import pytest
import torch

from chairlift.core.errors import ModelError
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.formats import dense_rows
from chairlift.model.weights.formats.grouped_weight import (
    consecutive_groups,
    group_size_of,
    num_groups,
)
from support_quantized import Layer, Spec, write_layers

UP = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("elements", [1, 500, 2**22])
@pytest.mark.parametrize("version", [0, 1])
def test_parts_and_chunks_have_the_same_numbers(
    version: int, elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_rows, "CHUNK_ELEMENTS", elements)
    spec = Spec(version=version)
    layer = spec.layer(64, 96)
    stored = Checkpoint.open(write_layers(tmp_path, {UP: layer}, spec.config()), "LlamaForCausalLM").tensors
    weight = stored[f"{UP}.weight"]
    assert torch.equal(weight.dense(), layer.dense)
    part = (slice(13, 58), slice(7, 90))
    assert torch.equal(weight.dense(part), layer.dense[part])
    assert torch.equal(weight.dense(None, torch.bfloat16), layer.dense.bfloat16())
    assert torch.equal(weight.dense((slice(5, 5), slice(0, 96))), layer.dense[5:5])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("version", [0, 1])
def test_a_scale_that_is_not_finite_is_named(version: int, value: float, tmp_path: Path) -> None:
    spec = Spec(version=version)
    layer = spec.layer(64, 64)
    layer.tensors["scales"][1, 5] = value
    folder = write_layers(tmp_path, {UP: layer}, spec.config())
    weight = Checkpoint.open(folder, "LlamaForCausalLM").tensors[f"{UP}.weight"]
    with pytest.raises(
        ModelError, match=r"up_proj\.scales in .*model\.safetensors has a scale that is infinite or not"
    ):
        weight.dense()


def test_other_tensors_pass_and_those_of_a_weight_are_consumed(tmp_path: Path) -> None:
    spec = Spec(version=1)
    others = {"model.norm.weight": torch.ones(4), f"{UP}.bias": torch.ones(64), "free": torch.ones(2),
              "model.layers.0.x.scales": torch.ones(1)}  # fmt: skip
    folder = write_layers(tmp_path, {UP: spec.layer(64, 64)}, spec.config(), **others)
    tensors = Checkpoint.open(folder, "LlamaForCausalLM").tensors
    assert tensors.keys() == {f"{UP}.weight", *others}
    assert all(torch.equal(tensors[name].dense(), tensor) for name, tensor in others.items())
    assert tensors["model.norm.weight"].dtype == "F32"
    assert tensors[f"{UP}.weight"].name == f"{UP}.qweight" and tensors[f"{UP}.weight"].file.name == "model.safetensors"


def test_a_module_with_both_a_packed_and_a_plain_weight_is_refused(tmp_path: Path) -> None:
    spec = Spec()
    plain = {f"{UP}.weight": torch.ones(64, 64)}
    folder = write_layers(tmp_path, {UP: spec.layer(64, 64)}, spec.config(), **plain)
    with pytest.raises(ModelError, match=r"up_proj\.weight is stored twice"):
        Checkpoint.open(folder, "LlamaForCausalLM")


def test_a_module_at_the_top_has_its_name(tmp_path: Path) -> None:
    spec = Spec(version=1)
    folder = write_layers(tmp_path, {"lm_head": spec.layer(64, 64)}, spec.config(lm_head=True))
    assert Checkpoint.open(folder, "LlamaForCausalLM").tensors.keys() == {"lm_head.weight"}


def test_groups_of_a_row() -> None:
    assert (num_groups(96, 32), num_groups(100, 32), num_groups(96, -1)) == (3, 4, 1)
    assert consecutive_groups(5, 2).tolist() == [0, 0, 1, 1, 2] and consecutive_groups(3, -1).tolist() == [0, 0, 0]
    assert group_size_of({"q_group_size": 64}, "x", "group_size", "q_group_size") == 64


@pytest.mark.parametrize("size", [0, -2, "32", True, None, 1.5])
def test_a_wrong_group_size_is_named(size: object) -> None:
    with pytest.raises(ModelError, match=r"group_size of x\.json must be a positive integer or -1, got "):
        group_size_of({"group_size": size}, "x.json", "group_size")


def test_a_layer_of_the_tests_is_what_the_formula_says() -> None:
    layer: Layer = Spec(group_size=-1, sym=True).layer(8, 32)
    scales = layer.tensors["scales"].float().t()
    codes = layer.dense / scales + 8
    torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-4)
    assert codes.min() >= 0 and codes.max() < 15.5
