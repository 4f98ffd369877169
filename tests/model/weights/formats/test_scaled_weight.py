"""ScaledWeight: numbers of whole weights, parts and chunks in every form, and tensors that do not fit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.weights.formats import dense_rows
from chairlift.model.weights.formats.packed_codes import unpacked
from chairlift.model.weights.formats.safetensors import stored_weights
from chairlift.model.weights.formats.scaled_weight import ScaledWeight, scaled_weight
from support_compressed import FORMS, Form, packed

OUTPUTS, INPUTS = 84, 100
"""Sizes that neither the groups nor the words of the forms divide."""

GROUPS = FORMS["4-bit zeros"]
ORDER = FORMS["4-bit order"]


def weight_of(folder: Path, tensors: dict[str, Tensor], form: Form) -> ScaledWeight:
    save_file(tensors, folder / "model.safetensors")
    stored = dict(stored_weights(folder, "LlamaForCausalLM"))
    codes = stored["weight_packed" if form.is_packed else "weight"]
    shape = (OUTPUTS, INPUTS) if form.is_packed else None
    return scaled_weight(
        codes, stored[form.scale], "form", [form.block] if all(form.block) else [],
        shape=shape, bits=form.bits if form.is_packed else 0,
        zero_points=stored.get("weight_zero_point"), group_index=stored.get("weight_g_idx"),
    )  # fmt: skip


def encoded(form: Form) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors, dense = form.encode(torch.randn(OUTPUTS, INPUTS, generator=generator) * 0.2, generator)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}, dense


@pytest.mark.parametrize("elements", [1, 700, 2**22])
@pytest.mark.parametrize("name", FORMS)
def test_numbers_are_those_of_the_formula(
    name: str, elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_rows, "CHUNK_ELEMENTS", elements)
    tensors, dense = encoded(FORMS[name])
    stored = weight_of(tmp_path, tensors, FORMS[name])
    assert (stored.shape, stored.dense_dtype, stored.dtype) == ((OUTPUTS, INPUTS), "float32", "form")
    assert stored.dense().dtype == torch.float32 and torch.equal(stored.dense(), dense)
    assert torch.equal(stored.dense(None, torch.bfloat16), dense.bfloat16())
    part = (slice(37, 83), slice(30, 71))
    assert torch.equal(stored.dense(part, torch.float64), dense[part].double())
    assert stored.dense((slice(5, 5), slice(0, INPUTS))).shape == (0, INPUTS)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_first_code_of_a_word_is_in_its_lowest_bits(bits: int) -> None:
    word = torch.tensor([[0x12345678]], dtype=torch.int32)
    codes = [8, 7, 6, 5, 4, 3, 2, 1] if bits == 4 else [0x78, 0x56, 0x34, 0x12]
    assert unpacked(word, bits).tolist() == [codes]
    offset = 2 ** (bits - 1)
    assert torch.equal(packed(torch.tensor([codes]) - offset, bits), word)


def test_scales_that_are_powers_of_two(tmp_path: Path) -> None:
    form = replace(FORMS["fp8 blocks"], scale_dtype=torch.float8_e8m0fnu)
    tensors, dense = encoded(form)
    assert torch.equal(weight_of(tmp_path, tensors, form).dense(), dense)


def test_an_index_without_an_order_is_ignored(tmp_path: Path) -> None:
    tensors, dense = encoded(GROUPS)
    tensors["weight_g_idx"] = torch.full((INPUTS,), -1, dtype=torch.int32)
    assert torch.equal(weight_of(tmp_path, tensors, GROUPS).dense(), dense)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["4-bit groups", "int8 tensor", "fp8 blocks"])
def test_a_scale_that_is_not_finite_is_named(name: str, value: float, tmp_path: Path) -> None:
    tensors, _ = encoded(FORMS[name])
    tensors[FORMS[name].scale].view(-1)[-1] = value
    stored = weight_of(tmp_path, tensors, FORMS[name])
    with pytest.raises(ModelError, match=r"tensor weight_scale\w* in .*model\.safetensors has numbers that are inf"):
        stored.dense()


def test_a_float_that_is_not_a_number_is_named(tmp_path: Path) -> None:
    tensors, _ = encoded(FORMS["float rows"])
    tensors["weight"].view(torch.uint8)[3, 3] = 0x7F
    with pytest.raises(ModelError, match=r"tensor weight in .* has numbers that are infinite or not a number"):
        weight_of(tmp_path, tensors, FORMS["float rows"]).dense()


@pytest.mark.parametrize("index", [0, 4, -2])
def test_an_index_that_has_no_whole_groups_is_named(index: int, tmp_path: Path) -> None:
    tensors, _ = encoded(ORDER)
    at = int((tensors["weight_g_idx"] == 1).nonzero()[0])
    tensors["weight_g_idx"][at] = index
    with pytest.raises(ModelError, match=r"tensor weight_g_idx in .* does not have each of 4 groups for 32 inputs"):
        weight_of(tmp_path, tensors, ORDER).dense()


@pytest.mark.parametrize(
    ("form", "name", "tensor", "message"),
    [
        (GROUPS, "weight_scale", torch.ones(OUTPUTS, 3), r"has shape \(84, 3\), which does not fit .* \(84, 100\)"),
        (GROUPS, "weight_scale", torch.ones(OUTPUTS, 4, 1), r"has shape \(84, 4, 1\), which does not fit"),
        (GROUPS, "weight_scale", torch.ones(OUTPUTS + 1), r"has shape \(85,\), which does not fit"),
        (GROUPS, "weight_scale", torch.ones(OUTPUTS, 4, dtype=torch.uint8), "has dtype U8; supported for scales"),
        (GROUPS, "weight_zero_point", torch.ones(11, 3, dtype=torch.int32), r"has shape \(11, 3\), its scales have"),
        (GROUPS, "weight_zero_point", torch.ones(OUTPUTS, 3, dtype=torch.int8), r"has dtype I8 and shape \(84, 3\)"),
        (GROUPS, "weight_zero_point", torch.ones(OUTPUTS, 4), r"has dtype F32 and shape \(84, 4\)"),
        (ORDER, "weight_g_idx", torch.zeros(99, dtype=torch.int32), r"has dtype I32 and shape \(99,\), not \(100,\)"),
        (ORDER, "weight_g_idx", torch.zeros(INPUTS), "has dtype F32"),
        (
            FORMS["fp8 rows"],
            "weight",
            torch.ones(1, OUTPUTS, INPUTS),
            r"has shape \(1, 84, 100\), a quantized weight requires 2 axes",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    form: Form, name: str, tensor: Tensor, message: str, tmp_path: Path
) -> None:  # fmt: skip
    tensors, _ = encoded(form)
    with pytest.raises(ModelError, match=f"tensor {name} in .*model.safetensors {message}"):
        weight_of(tmp_path, tensors | {name: tensor}, form)


def test_zero_points_in_words_need_a_scale_for_each_row(tmp_path: Path) -> None:
    form = replace(GROUPS, block=(0, 0), zeros="plain")
    tensors, _ = encoded(form)
    tensors["weight_zero_point"] = torch.zeros(11, 1, dtype=torch.int32)
    with pytest.raises(ModelError, match="tensor weight_zero_point"):
        weight_of(tmp_path, tensors, form)
