"""The format GPTQ: numbers of every width and version, orders of inputs, overrides, older folders, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.model_folder import ORIGINAL
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.formats import gptq
from chairlift.model.weights.formats.registry import format_of, is_safetensors
from support_quantized import Layer, Spec, write_layers

UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
LLAMA = "LlamaForCausalLM"


def weight_of(folder: Path, module: str = UP) -> Any:
    return Checkpoint.open(folder, LLAMA).tensors[f"{module}.weight"]


@pytest.mark.parametrize("sym", [False, True])
@pytest.mark.parametrize("desc_act", [False, True])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_every_number_is_that_of_the_formula(
    bits: int, version: int, desc_act: bool, sym: bool, tmp_path: Path
) -> None:  # fmt: skip
    spec = Spec(bits=bits, version=version, desc_act=desc_act, sym=sym)
    layer = spec.layer(64, 96)
    folder = write_layers(tmp_path, {UP: layer}, spec.config())
    assert format_of(folder) is gptq and not is_safetensors(folder)
    weight = weight_of(folder)
    assert torch.equal(weight.dense(), layer.dense) and weight.shape == (64, 96)
    assert (weight.dtype, weight.dense_dtype) == (f"GPTQ {bits}-bit", "float32")


@pytest.mark.parametrize("scales", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [-1, 16, 40])
@pytest.mark.parametrize("has_g_idx", [False, True])
def test_groups_and_scales(has_g_idx: bool, size: int, scales: torch.dtype, tmp_path: Path) -> None:
    spec = Spec(version=1, group_size=size, has_g_idx=has_g_idx, scales=scales)
    layer = spec.layer(40, 96)
    assert torch.equal(weight_of(write_layers(tmp_path, {UP: layer}, spec.config())).dense(), layer.dense)


@pytest.mark.parametrize("bits", [4, 8])
def test_inputs_that_fill_one_word(bits: int, tmp_path: Path) -> None:
    spec = Spec(bits=bits, version=2, group_size=-1)
    layer = spec.layer(64, 32 // bits)
    assert torch.equal(weight_of(write_layers(tmp_path, {UP: layer}, spec.config())).dense(), layer.dense)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("named", "version"), [("gptq", 2), ("gptq_v2", 1)])
def test_symmetric_zeros_count_in_either_version(bits: int, named: str, version: int, tmp_path: Path) -> None:
    spec = Spec(bits=bits, version=version, sym=True)
    layer = spec.layer(32, 96)
    folder = write_layers(tmp_path, {UP: layer}, spec.config(checkpoint_format=named))
    assert torch.equal(weight_of(folder).dense(), layer.dense)


def test_a_zero_of_zero_borrows_from_the_next_code(tmp_path: Path) -> None:
    tensors = {
        "qweight": torch.zeros(4, 8, dtype=torch.int32), "scales": torch.ones(1, 8).half(),
        "qzeros": torch.tensor([[0x7654321F - 0x10]], dtype=torch.int32),
    }  # fmt: skip
    folder = write_layers(tmp_path, {UP: Layer(tensors, torch.empty(0))}, Spec(version=1).config())
    assert weight_of(folder).dense()[:, 0].tolist() == [0, -2, -3, -4, -5, -6, -7, -8]


def test_an_empty_g_idx_is_none(tmp_path: Path) -> None:
    layer = Spec(version=1, has_g_idx=False).layer(32, 64)
    layer.tensors["g_idx"] = torch.empty(0, dtype=torch.int32)
    assert torch.equal(weight_of(write_layers(tmp_path, {UP: layer}, Spec(version=1).config())).dense(), layer.dense)


def test_overrides_hold_for_the_modules_that_they_match(tmp_path: Path) -> None:
    base, other = Spec(version=1), Spec(version=1, bits=8, group_size=16, sym=True)
    layers = {UP: base.layer(64, 64), DOWN: other.layer(64, 64)}
    dynamic: dict[str, Any] = {
        r"-:.*\.q_proj": {}, r"+:.*\.0\..*down": {"bits": 8, "group_size": 16, "sym": True}, "model": {},
        r".*down": {"bits": 2},
    }  # fmt: skip
    plain = {"model.layers.0.self_attn.q_proj.weight": torch.ones(4, 4)}
    folder = write_layers(tmp_path, layers, base.config(dynamic=dynamic), **plain)
    assert all(torch.equal(weight_of(folder, name).dense(), layer.dense) for name, layer in layers.items())
    assert [weight_of(folder, name).dtype for name in layers] == ["GPTQ 4-bit", "GPTQ 8-bit"]
    assert Checkpoint.open(folder, LLAMA).tensors["model.layers.0.self_attn.q_proj.weight"].dtype == "F32"


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"+:(": {"bits": 8}}, r"dynamic of quantization_config in config\.json has an invalid pattern '\+:\('"),
        (["x"], "must be an object, got list"),
        (
            {".*": {"bits": 5}},
            r"to 5 bits \(dynamic of quantization_config in config\.json\), supported are 2, 3, 4, 8",
        ),
        ({".*": {"group_size": 0}}, "group_size of dynamic of quantization_config"),
    ],
)
def test_invalid_overrides_are_named(dynamic: object, message: str, tmp_path: Path) -> None:
    spec = Spec(version=1)
    with pytest.raises(ModelError, match=message):
        weight_of(write_layers(tmp_path, {UP: spec.layer(32, 64)}, spec.config(dynamic=dynamic)))


@pytest.mark.parametrize("has_entry", [False, True])
def test_an_older_folder_has_the_entry_in_a_file_of_its_own(has_entry: bool, tmp_path: Path) -> None:
    """Where config.json has an entry, too, that one counts."""
    spec = Spec(version=1, desc_act=True)
    layer = spec.layer(32, 64)
    folder = write_layers(tmp_path, {UP: layer}, spec.config() if has_entry else None)
    older = {"bits": 4, "group_size": 32, "damp_percent": 0.1, "desc_act": True, "sym": False, "true_sequential": True}
    (folder / "quantize_config.json").write_text(json.dumps(older | ({"bits": 8} if has_entry else {})))
    assert format_of(folder) is gptq and torch.equal(weight_of(folder).dense(), layer.dense)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"checkpoint_format": "marlin"},
            r"GPTQ in the layout marlin \(quantization_config in config\.json\), supported",
        ),
        ({"checkpoint_format": None, "is_marlin_format": True}, "in the layout marlin"),
        ({"checkpoint_format": None, "format": "gptq_p"}, "in the layout gptq_p .* supported are gptq and gptq_v2;"),
        ({"bits": 5}, r"with GPTQ to 5 bits \(quantization_config in config\.json\), supported are 2, 3, 4, 8;"),
        ({"bits": None}, "to None bits"),
    ],
)
def test_another_layout_and_other_bits_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    spec = Spec(version=1)
    folder = write_layers(tmp_path, {UP: spec.layer(32, 64)}, spec.config(**changes))
    with pytest.raises(UnsupportedModel, match=message) as caught:
        Checkpoint.open(folder, LLAMA)
    assert caught.value.details["remedy"] == ORIGINAL and caught.value.message.endswith(ORIGINAL)


@pytest.mark.parametrize("group", [-1, 2])
def test_a_group_that_does_not_exist_is_named(group: int, tmp_path: Path) -> None:
    layer = Spec(version=1).layer(32, 64)
    layer.tensors["g_idx"][3] = group
    weight = weight_of(write_layers(tmp_path, {UP: layer}, Spec(version=1).config()))
    with pytest.raises(ModelError, match=rf"up_proj\.g_idx in .*has group {group}, the groups are 0 to 1"):
        weight.dense()


@pytest.mark.parametrize(
    ("kind", "tensor", "message"),
    [
        ("qweight", torch.zeros(8, 40, dtype=torch.int16), "has dtype I16, required is I32"),
        ("qweight", torch.zeros(8, 0, dtype=torch.int32), r"has shape \(8, 0\), required are two axes"),
        (
            "qzeros",
            torch.zeros(2, 40, dtype=torch.int32),
            r"has shape \(2, 40\), the weight's other tensors require \(2,",
        ),
        ("scales", torch.zeros(3, 40).half(), r"has shape \(3, 40\), the weight's other tensors require \(2, 40\)"),
        ("scales", None, r"up_proj\.scales is missing, but .*model\.safetensors has model.*\.up_proj\.qweight"),
        ("qzeros", None, r"up_proj\.qzeros is missing, but "),
        ("g_idx", None, r"up_proj\.g_idx is missing, but "),
        ("g_idx", torch.zeros(63, dtype=torch.int32), r"has shape \(63,\), the weight's other tensors require \(64,\)"),
        ("g_idx", torch.zeros(64), "has dtype F32, required is I32 or I64"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_its_file(
    kind: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    spec = Spec(version=1, desc_act=True)
    layer = spec.layer(40, 64)
    tensors = {name: value for name, value in (layer.tensors | {kind: tensor}).items() if value is not None}
    folder = write_layers(tmp_path, {UP: Layer(tensors, layer.dense)}, spec.config())
    with pytest.raises(ModelError, match=message) as caught:
        Checkpoint.open(folder, LLAMA)
    assert caught.value.details == {"file": str(folder / "model.safetensors"), "tensor": f"{UP}.{kind}"}
    assert f"{UP}.{kind}" in caught.value.message and "model.safetensors" in caught.value.message


def test_rows_that_three_bits_do_not_fill_are_named(tmp_path: Path) -> None:
    folder = write_layers(tmp_path, {UP: Spec(version=1).layer(32, 64)}, Spec(version=1, bits=3).config())
    with pytest.raises(ModelError, match=r"up_proj\.qweight in .* has 8 rows, which do not hold whole groups of 3-bit"):
        Checkpoint.open(folder, LLAMA)
