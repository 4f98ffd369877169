"""The format AWQ: numbers, groups, absent zeros, older folders, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.model_folder import ORIGINAL
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.checkpoint_fingerprint import fingerprint
from chairlift.model.weights.formats import awq
from chairlift.model.weights.formats.registry import format_of, is_safetensors
from support_quantized import Layer, Spec, write_layers

UP = "model.layers.0.mlp.up_proj"
LLAMA = "LlamaForCausalLM"


def weight_of(folder: Path) -> Any:
    return Checkpoint.open(folder, LLAMA).tensors[f"{UP}.weight"]


@pytest.mark.parametrize(
    "spec", [Spec(), Spec(group_size=-1), Spec(group_size=16, scales=torch.bfloat16), Spec(has_zeros=False)]
)
def test_every_number_is_that_of_the_formula(spec: Spec, tmp_path: Path) -> None:
    layer = spec.layer(40, 96)
    folder = write_layers(tmp_path, {UP: layer}, spec.config())
    assert format_of(folder) is awq and not is_safetensors(folder)
    weight = weight_of(folder)
    assert torch.equal(weight.dense(), layer.dense) and weight.shape == (40, 96)
    assert (weight.dtype, weight.dense_dtype) == ("AWQ 4-bit", "float32")


def test_zeros_in_the_file_count_although_the_entry_has_none(tmp_path: Path) -> None:
    layer = Spec().layer(40, 96)
    assert torch.equal(
        weight_of(write_layers(tmp_path, {UP: layer}, Spec().config(zero_point=False))).dense(), layer.dense
    )


def test_an_older_folder_has_the_entry_in_a_file_of_its_own(tmp_path: Path) -> None:
    layer = Spec().layer(40, 96)
    folder = write_layers(tmp_path, {UP: layer}, None)
    older = {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}
    (folder / "quant_config.json").write_text(json.dumps(older))
    assert format_of(folder) is awq and torch.equal(weight_of(folder).dense(), layer.dense)


def test_the_fingerprint_changes_with_the_codes(tmp_path: Path) -> None:
    layer = Spec().layer(40, 96)
    first = fingerprint(write_layers(tmp_path, {UP: layer}, Spec().config()), "bfloat16 none")
    layer.tensors["qweight"][0, 0] ^= 1
    assert fingerprint(write_layers(tmp_path, {UP: layer}, Spec().config()), "bfloat16 none") != first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "gemv"}, r"quantized with AWQ version gemv \(quantization_config in config\.json\), supported is"),
        ({"version": "gemv_fast"}, "version gemv_fast"),
        ({"version": "Marlin"}, "version Marlin"),
        ({"version": "exllama"}, "version exllama"),
        ({"version": None, "checkpoint_format": "llm-awq"}, "version llm-awq"),
        ({"bits": 8}, r"quantized with AWQ to 8 bits \(quantization_config in config\.json\), supported are 4;"),
    ],
)
def test_another_version_and_other_bits_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_layers(tmp_path, {UP: Spec().layer(8, 32)}, Spec().config(**changes))
    with pytest.raises(UnsupportedModel, match=message) as caught:
        Checkpoint.open(folder, LLAMA)
    assert caught.value.details["remedy"] == ORIGINAL and caught.value.message.endswith(ORIGINAL)


def test_a_wrong_group_size_is_refused(tmp_path: Path) -> None:
    folder = write_layers(tmp_path, {UP: Spec().layer(8, 32)}, Spec().config(group_size=0))
    with pytest.raises(ModelError, match=r"group_size of quantization_config in config\.json must be a positive"):
        Checkpoint.open(folder, LLAMA)


@pytest.mark.parametrize(
    ("kind", "tensor", "message"),
    [
        ("qweight", torch.zeros(64, 5, dtype=torch.int64), "has dtype I64, required is I32"),
        ("qweight", torch.zeros(64, dtype=torch.int32), r"has shape \(64,\), required are two axes"),
        ("qweight", torch.zeros(0, 5, dtype=torch.int32), r"has shape \(0, 5\), required are two axes"),
        (
            "qzeros",
            torch.zeros(3, 5, dtype=torch.int32),
            r"has shape \(3, 5\), the weight's other tensors require \(2, 5",
        ),
        ("qzeros", torch.zeros(2, 5), "has dtype F32, required is I32"),
        ("scales", torch.zeros(2, 5).half(), r"has shape \(2, 5\), the weight's other tensors require \(2, 40\)"),
        ("scales", torch.zeros(2, 40).double(), "has dtype F64, required is F16 or BF16 or F32"),
        ("scales", None, r"up_proj\.scales is missing, but .*model\.safetensors has model.*\.up_proj\.qweight"),
        ("qzeros", None, r"up_proj\.qzeros is missing, but "),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_its_file(
    kind: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    layer = Spec().layer(40, 64)
    tensors = {name: value for name, value in (layer.tensors | {kind: tensor}).items() if value is not None}
    folder = write_layers(tmp_path, {UP: Layer(tensors, layer.dense)}, Spec().config())
    with pytest.raises(ModelError, match=message) as caught:
        Checkpoint.open(folder, LLAMA)
    assert caught.value.details == {"file": str(folder / "model.safetensors"), "tensor": f"{UP}.{kind}"}
    assert f"{UP}.{kind}" in caught.value.message and "model.safetensors" in caught.value.message
