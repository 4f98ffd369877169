"""The formats fp8 and fbgemm_fp8: parameters of whole folders, ranks' parts, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.model_folder import ORIGINAL
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.formats import fp8
from chairlift.model.weights.formats.registry import format_of, is_safetensors
from chairlift.model.weights.shard import Shard
from support_compressed import E4M3, FORMS, write_quantized
from support_shares import for_each

LLAMA = "LlamaForCausalLM"
MODULE = "model.layers.1.mlp.down_proj"
SUPPORTED = [name for name, form in FORMS.items() if form.entry()["quant_method"] in fp8.METHODS]


def replace_tensors(folder: Path, **changes: Tensor | None) -> Path:
    tensors = load_file(folder / "model.safetensors")
    for last, tensor in changes.items():
        tensors.pop(f"{MODULE}.{last}", None)
        if tensor is not None:
            tensors[f"{MODULE}.{last}"] = tensor
    save_file(tensors, folder / "model.safetensors")
    return folder


def change_entry(folder: Path, **fields: Any) -> Path:
    content = json.loads((folder / "config.json").read_text())
    content["quantization_config"] |= fields
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("form", SUPPORTED)
def test_every_number_is_that_of_the_formula(form: str, tmp_path: Path) -> None:
    model = write_quantized(tmp_path, "llama", FORMS[form])
    assert format_of(tmp_path) is fp8 and not is_safetensors(tmp_path)
    checkpoint, expected = Checkpoint.open(tmp_path, LLAMA), dict(model.named_parameters())
    assert checkpoint.tensors.keys() == expected.keys()
    for name, numbers in expected.items():
        assert torch.equal(checkpoint.read(name).double(), numbers), name
    checkpoint.check({name: tuple(numbers.shape) for name, numbers in expected.items()})
    checkpoint.check_not_quantized()
    assert checkpoint.stored_types() == "F8_E4M3 70%, F32 30%"


@pytest.mark.parametrize("form", SUPPORTED)
def test_the_parts_of_two_ranks_are_the_whole(form: str, tmp_path: Path) -> None:
    model = write_quantized(tmp_path, "llama", FORMS[form])
    checkpoint, name = Checkpoint.open(tmp_path, LLAMA), f"{MODULE}.weight"
    parts = [checkpoint.read_part(name, Shard(rank, 2), (64, 48), torch.float64) for rank in range(2)]
    assert torch.equal(torch.cat(parts, 1), dict(model.named_parameters())[name])


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_a_scale_multiplies_under_both_names(name: str, tmp_path: Path) -> None:
    write_quantized(tmp_path, "llama", FORMS["fp8 scalar"])
    replace_tensors(tmp_path, weight_scale=None)
    replace_tensors(tmp_path, activation_scale=torch.tensor(2.0), **{name: torch.tensor(0.25)})
    weight = load_file(tmp_path / "model.safetensors")[f"{MODULE}.weight"]
    checkpoint = Checkpoint.open(tmp_path, LLAMA)
    assert torch.equal(checkpoint.read(f"{MODULE}.weight"), weight.float() * 0.25)
    assert not [name for name in checkpoint.tensors if "scale" in name]


def test_blocks_are_of_128_rows_and_columns_by_default(tmp_path: Path) -> None:
    write_quantized(tmp_path, "llama", FORMS["fp8 rows"])
    codes, scales = torch.randn(300, 200).to(E4M3), torch.rand(3, 2)
    replace_tensors(tmp_path, weight=codes, weight_scale=None, weight_scale_inv=scales)
    spread = scales.repeat_interleave(128, 0)[:300].repeat_interleave(128, 1)[:, :200]
    stored = Checkpoint.open(tmp_path, LLAMA).tensors[f"{MODULE}.weight"]
    assert torch.equal(stored.dense(), codes.float() * spread)


def test_a_module_that_is_not_converted_is_as_it_was(tmp_path: Path) -> None:
    write_quantized(tmp_path, "llama", FORMS["fp8 blocks"])
    numbers = torch.randn(64, 96, dtype=torch.bfloat16)
    replace_tensors(tmp_path, weight=numbers, weight_scale_inv=None)
    stored = Checkpoint.open(tmp_path, LLAMA).tensors[f"{MODULE}.weight"]
    assert stored.dtype == "BF16" and torch.equal(stored.dense(), numbers)


def test_other_floats_are_refused(tmp_path: Path) -> None:
    write_quantized(tmp_path, "llama", FORMS["fp8 rows"])
    change_entry(tmp_path, fmt="e5m2")
    with pytest.raises(
        UnsupportedModel, match=r"8-bit floats of format 'e5m2' \(quantization_config in config"
    ) as first:
        Checkpoint.open(tmp_path, LLAMA)
    change_entry(tmp_path, fmt="e4m3")
    replace_tensors(tmp_path, weight=torch.ones(64, 96).to(torch.float8_e5m2))
    with pytest.raises(UnsupportedModel, match=rf"tensor {MODULE}\.weight in .* has dtype F8_E5M2") as second:
        Checkpoint.open(tmp_path, LLAMA)
    assert all(caught.value.message.endswith(f"; {ORIGINAL}") for caught in (first, second))


@for_each(
    ("changes", "message"),
    [
        ({"weight_scale": None}, "weight in .*, and its module has neither weight_scale nor weight_scale_inv"),
        ({"weight": torch.ones(64, 96)}, "weight in .* has a scale and dtype F32"),
        ({"weight_scale": torch.ones(63)}, r"weight_scale in .* has shape \(63,\), which does not fit"),
        ({"experts": torch.ones(2, 64, 96).to(E4M3)}, "experts in .* has dtype F8_E4M3, and its module has no scale"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    changes: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:  # fmt: skip
    write_quantized(tmp_path, "llama", FORMS["fp8 rows"])
    replace_tensors(tmp_path, **changes)
    with pytest.raises(ModelError, match=rf"tensor {MODULE}\.{message}"):
        Checkpoint.open(tmp_path, LLAMA)


@pytest.mark.parametrize("size", [128, [128], [128, 0], ["a", "b"]])
def test_a_wrong_size_of_blocks_is_named(size: object, tmp_path: Path) -> None:
    write_quantized(tmp_path, "llama", FORMS["fp8 blocks"])
    change_entry(tmp_path, weight_block_size=size)
    with pytest.raises(ModelError, match=r"weight_block_size in .*config\.json must be two numbers above 0, got"):
        Checkpoint.open(tmp_path, LLAMA)
