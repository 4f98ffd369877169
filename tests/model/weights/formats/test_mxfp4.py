"""MXFP4 experts of gpt-oss: transformers' numbers, ggml's blocks with the same numbers, tensors that do not fit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from chairlift.core.errors import ModelError
from chairlift.model.weights.formats.mxfp4 import MXFP4Weight
from chairlift.model.weights.formats.safetensors import stored_weights
from chairlift.model.weights.formats.stacked_experts import canonical_experts
from chairlift.model.weights.gguf_blocks import dequantize
from chairlift.model.weights.stored_weight import StoredWeight
from support_experts import EXPERTS
from support_shares import for_each

GPT_OSS = "GptOssForCausalLM"
NAME = "model.layers.1.mlp.experts"


def drawn(experts: int, outputs: int, groups: int, seed: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, outputs, groups, 16), generator=dice, dtype=torch.uint8)
    return blocks, torch.randint(90, 160, (experts, outputs, groups), generator=dice, dtype=torch.uint8)


def stored(folder: Path, tensors: dict[str, Tensor]) -> dict[str, StoredWeight]:
    save_file({f"{NAME}.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    return dict(canonical_experts(EXPERTS[GPT_OSS], stored_weights(folder, GPT_OSS)))


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    gate_up, down = drawn(3, 2 * 32, 2, seed=1), drawn(3, 64, 1, seed=2)
    return {
        "gate_up_proj_blocks": gate_up[0], "gate_up_proj_scales": gate_up[1], "down_proj_blocks": down[0],
        "down_proj_scales": down[1],
    }  # fmt: skip


def test_numbers_are_those_of_transformers(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    found = stored(tmp_path, tensors)
    gate_up, down = (
        convert_moe_packed_tensors(tensors[f"{name}_blocks"], tensors[f"{name}_scales"], dtype=torch.float32)
        for name in ("gate_up_proj", "down_proj")
    )
    assert len(found) == 9
    for index in range(3):
        expected = {"gate": gate_up[index, :, ::2].T, "up": gate_up[index, :, 1::2].T, "down": down[index].T}
        for part, numbers in expected.items():
            weight = found[f"{NAME}.{index}.{part}_proj.weight"]
            assert weight.shape == tuple(numbers.shape) and weight.dtype == weight.codes_type == "MXFP4"
            assert torch.equal(weight.dense(), numbers)
            assert torch.equal(weight.dense(dtype=torch.bfloat16), numbers.bfloat16())
            places = slice(5, 11), slice(3, 29)
            assert torch.equal(weight.dense(places), numbers[places])
            codes = weight.codes()
            assert codes.shape == weight.shape
            assert torch.equal(torch.from_numpy(dequantize(codes.rows, codes.type)), numbers)


@for_each("exponent", [0, 1, 127, 252])
def test_every_code_and_the_ends_of_scales(tmp_path: Path, exponent: int) -> None:
    codes = torch.arange(32) % 16
    blocks = (codes[::2] | codes[1::2] << 4).to(torch.uint8).view(1, 1, 1, 16)
    scales = torch.full((1, 1, 1), exponent, dtype=torch.uint8)
    found = stored(tmp_path, {"down_proj_blocks": blocks, "down_proj_scales": scales})[f"{NAME}.0.down_proj.weight"]
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    assert torch.equal(found.dense()[0].double(), values.repeat(2) * 2.0 ** (exponent - 127))


def test_a_scale_that_is_no_number_is_an_error(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    tensors["down_proj_scales"][1, 7, 0] = 255
    found = stored(tmp_path, tensors)
    found[f"{NAME}.0.down_proj.weight"].dense()
    with pytest.raises(ModelError, match=r"down_proj_scales in .* has scales that are not a number"):
        found[f"{NAME}.1.down_proj.weight"].dense()


def test_tensors_that_do_not_fit_are_named(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    for name, tensor, message in (
        ("down_proj_scales", tensors["down_proj_scales"][:, :-1], r"down_proj_scales .* shape \(3, 63, 1\), not U8"),
        ("down_proj_blocks", tensors["down_proj_blocks"][..., :8], r"down_proj_blocks .*16 bytes a block"),
        ("gate_up_proj_blocks", tensors["gate_up_proj_blocks"][:, :63], "an even number of outputs"),
        ("down_proj_scales", tensors["down_proj_scales"].float(), "has dtype F32"),
    ):
        with pytest.raises(ModelError, match=message):
            stored(tmp_path, {**tensors, name: tensor.contiguous()})


@for_each(("name", "missing"), [("down_proj_blocks", "scales"), ("gate_up_proj_scales", "blocks")])
def test_one_tensor_without_the_other_is_an_error(tmp_path: Path, name: str, missing: str) -> None:
    _, tensor = drawn(2, 2, 1, seed=0)
    with pytest.raises(ModelError, match=f"{name} in .* has no {missing}"):
        stored(tmp_path, {name: tensor})


def test_a_weight_says_where_it_is(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    weight = stored(tmp_path, tensors)[f"{NAME}.2.up_proj.weight"]
    assert isinstance(weight, MXFP4Weight) and weight.rows == range(1, 64, 2) and weight.index == 2
    assert weight.file == tmp_path / "model.safetensors" and weight.name.endswith("gate_up_proj_blocks")
    assert weight.dense_dtype == "float32"
