"""IntegerGroups: the types of blocks for codes of every width, their numbers, and what has no blocks."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.formats import dense_rows
from chairlift.model.weights.formats.integer_blocks import IntegerGroups
from chairlift.model.weights.formats.safetensors import stored_weights
from chairlift.model.weights.formats.scaled_weight import scaled_weight
from chairlift.model.weights.gguf_blocks import dequantize
from chairlift.model.weights.stored_weight import StoredWeight
from support_compressed import FORMS
from support_quantized import Spec, write_layers

UP = "model.layers.0.mlp.up_proj"

SPECS = {
    "awq": (Spec(group_size=64), "Q4_1"), "awq without zeros": (Spec(has_zeros=False), "Q4_0"),
    "awq rows": (Spec(group_size=-1), "Q4_1"), "gptq": (Spec(version=1), "Q4_1"),
    "gptq symmetric": (Spec(version=2, sym=True), "Q4_0"), "gptq 2 bits": (Spec(version=1, bits=2), "Q4_0"),
    "gptq 3 bits": (Spec(version=2, bits=3, group_size=96), "Q4_0"),
    "gptq 8 bits": (Spec(version=1, bits=8, sym=True, scales=torch.bfloat16), "Q8_0"),
    "gptq 8 bits, zeros": (Spec(version=1, bits=8), None), "gptq order": (Spec(version=1, desc_act=True), None),
    "groups of 16": (Spec(group_size=16), None), "float32 scales": (Spec(sym=True, scales=torch.float32), "Q4_0"),
}  # fmt: skip
"""How layers are packed, and the type of their blocks."""


def numbers_of(stored: StoredWeight) -> Tensor:
    rows = stored.codes()
    assert rows.type.name == stored.codes_type and rows.shape == stored.shape and rows.order is None
    return torch.from_numpy(dequantize(rows.rows, rows.type))


def check(stored: StoredWeight, name: str | None, *, is_exact: bool) -> None:
    """Compare with dense(): exactly, or with a limit that only rounding the minimum or the scale to float16 keeps."""
    dense = stored.dense()
    assert stored.codes_type == name
    if name is not None:
        limit = 0 if is_exact else 2**-10 * float(dense.abs().max())
        torch.testing.assert_close(numbers_of(stored), dense, rtol=0, atol=limit)


@pytest.mark.parametrize("elements", [700, 2**22])
@pytest.mark.parametrize("name", SPECS)
def test_layers_of_awq_and_gptq(name: str, elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_rows, "CHUNK_ELEMENTS", elements)
    spec, expected = SPECS[name]
    folder = write_layers(tmp_path, {UP: spec.layer(64, 192)}, spec.config())
    stored = Checkpoint.open(folder, "LlamaForCausalLM").tensors[f"{UP}.weight"]
    check(stored, expected, is_exact=expected != "Q4_1" and spec.scales != torch.float32)


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_compressed_tensors(name: str, tmp_path: Path) -> None:
    form, generator = FORMS[name], torch.Generator().manual_seed(1)
    tensors, _ = form.encode(torch.randn(84, 192, generator=generator) * 0.2, generator)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    found = dict(stored_weights(tmp_path, "LlamaForCausalLM"))
    stored = scaled_weight(
        found["weight_packed" if form.is_packed else "weight"], found[form.scale], "form",
        [form.block] if all(form.block) else [], shape=(84, 192) if form.is_packed else None,
        bits=form.bits if form.is_packed else 0, zero_points=found.get("weight_zero_point"),
        group_index=found.get("weight_g_idx"),
    )  # fmt: skip
    expected = {4: "Q4_0" if form.zeros == "none" else "Q4_1", 8: "Q8_0" if form.zeros == "none" else None}[form.bits]
    if form.numbers == "float" or form.act_order or form.block[1] % 32:
        expected = None
    check(stored, expected, is_exact=expected != "Q4_1" and form.scale_dtype != torch.float32)


def groups(scale: float = 0.01, zero: float = 8, inputs: int = 64) -> IntegerGroups:
    return IntegerGroups(4, torch.full((2, 1), scale), torch.full((2, 1), zero), torch.zeros(inputs, dtype=torch.int64))


def test_what_float16_would_change_has_no_blocks() -> None:
    def name(found: IntegerGroups) -> str | None:
        return None if found.type is None else found.type.name

    assert name(groups()) == name(groups(scale=-0.01)) == name(groups(scale=0.0)) == "Q4_0"
    assert name(groups(zero=7)) == "Q4_1" and name(groups(inputs=48)) is None
    assert name(groups(scale=3e-5 + 1e-9)) == "Q4_0" and name(groups(scale=1.5 * 2**-24)) is None
    assert name(groups(scale=2.0**-24)) == "Q4_0", "a float16"
    assert name(groups(scale=1e5)) is name(groups(scale=float("nan"))) is name(groups(scale=2e4, zero=7)) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_damaged_scale_is_named_before_codes_are_chosen(value: float, tmp_path: Path) -> None:
    spec = Spec()
    layer = spec.layer(64, 64)
    layer.tensors["scales"][1, 5] = value
    folder = write_layers(tmp_path, {UP: layer}, spec.config())
    stored = Checkpoint.open(folder, "LlamaForCausalLM").tensors[f"{UP}.weight"]
    with pytest.raises(ModelError, match=r"up_proj\.scales"):
        _ = stored.codes_type
