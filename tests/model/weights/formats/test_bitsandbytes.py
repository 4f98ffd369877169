"""The format bitsandbytes: numbers of whole weights, of parts and of chunks; models; tensors that do not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.select_model_config import parse_config
from chairlift.model.config.transformers_config import TransformersConfig
from chairlift.model.loading.model_building import load_model
from chairlift.model.transformers.pretrained import load_pretrained
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.checkpoint_fingerprint import fingerprint
from chairlift.model.weights.formats import bitsandbytes, dense_rows, safetensors
from chairlift.model.weights.formats.registry import format_of, is_safetensors
from chairlift.model.weights.shard import Shard
from support_dense_logits import assert_equal_logits
from support_models import save_tiny
from support_nf4 import (
    METHODS,
    change_config,
    json_tensor,
    numbers_4bit,
    numbers_int8,
    packed_4bit,
    packed_int8,
    write_bitsandbytes,
)

ENTRY = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
NAME = "model.layers.0.mlp.up_proj.weight"
MODULE = NAME.removesuffix("weight")
CPU = torch.device("cpu")

PACKINGS: dict[str, dict[str, Any]] = {
    **METHODS,
    "fp4 nested": {"kind": "fp4", "nested_size": 64},
    "nf4 in float32": {"storage": torch.float32},
    "nf4 in float16, long blocks": {"storage": torch.float16, "block_size": 4096, "nested_size": 2},
    "nf4 in int8": {"storage": torch.int8},
}


def write(folder: Path, parts: dict[str, Tensor], *, start: str = NAME) -> Path:
    """Write a folder that has one weight."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(ENTRY))
    save_file({start + end: part.clone() for end, part in parts.items()}, folder / "model.safetensors")
    return folder


def weight(rows: int = 700, columns: int = 96) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) * 0.1


def stored_in(folder: Path) -> Any:
    checkpoint = Checkpoint.open(folder, "LlamaForCausalLM")
    assert list(checkpoint.tensors) == [NAME]
    return checkpoint.tensors[NAME]


@pytest.mark.parametrize("packing", PACKINGS)
def test_numbers_of_4_bits_are_those_of_the_formula(packing: str, tmp_path: Path) -> None:
    parts = packed_4bit(weight(), **PACKINGS[packing])
    stored = stored_in(write(tmp_path, parts))
    expected = numbers_4bit(parts)
    assert 0.9 < torch.corrcoef(torch.stack((expected.view(-1), weight().view(-1))))[0, 1] < 1
    assert torch.equal(stored.dense(), expected)
    assert torch.equal(stored.dense(None, torch.bfloat16), expected.bfloat16())
    assert torch.equal(stored.dense(None, torch.float64), expected.double())
    assert (stored.shape, stored.dtype, stored.dense_dtype) == ((700, 96), packing[:3], "float32")
    assert (stored.name, stored.file) == (NAME, tmp_path / "model.safetensors")


def test_numbers_of_8_bits_are_those_of_the_formula(tmp_path: Path) -> None:
    parts = packed_int8(weight())
    stored = stored_in(write(tmp_path, parts, start=MODULE))
    torch.testing.assert_close(stored.dense(), weight(), rtol=0, atol=float(weight().abs().max()) / 250)
    assert torch.equal(stored.dense(), numbers_int8(parts))
    assert (stored.shape, stored.dtype, stored.dense_dtype) == ((700, 96), "int8 (bitsandbytes)", "float32")
    del parts["weight_format"]
    assert torch.equal(stored_in(write(tmp_path, parts, start=MODULE)).dense(), numbers_int8(parts))


@pytest.mark.parametrize("elements", [1, 250, 2**22])
@pytest.mark.parametrize("shape", [(41, 96), (13, 11), (3, 5)])
@pytest.mark.parametrize("packing", ["nf4", "nf4 nested", "int8"])
def test_parts_and_chunks_have_the_same_numbers(
    packing: str, shape: tuple[int, int], elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_rows, "CHUNK_ELEMENTS", elements)
    if packing == "int8":
        parts = packed_int8(weight(*shape))
        folder, expected = write(tmp_path, parts, start=MODULE), numbers_int8(parts)
    else:
        parts = packed_4bit(weight(*shape), **PACKINGS[packing])
        folder, expected = write(tmp_path, parts), numbers_4bit(parts)
    stored = stored_in(folder)
    assert torch.equal(stored.dense(), expected)
    for part in (
        (slice(1, 3), slice(0, shape[1])), (slice(0, shape[0]), slice(2, 5)), (slice(1, 5), slice(1, 4)),
        (slice(2, 2), slice(0, 4)),
    ):  # fmt: skip
        assert torch.equal(stored.dense(part), expected[part])


@pytest.mark.parametrize("method", [*METHODS, "int8"])
def test_ranks_read_their_parts(method: str, tmp_path: Path) -> None:
    expected = dict(write_bitsandbytes(tmp_path, "llama", method).named_parameters())
    checkpoint = Checkpoint.open(tmp_path, "LlamaForCausalLM")
    for name, axis in (("mlp.up_proj", 0), ("self_attn.k_proj", 0), ("mlp.down_proj", 1), ("self_attn.o_proj", 1)):
        whole = expected[f"model.layers.1.{name}.weight"].float()
        own = [size // 2 if number == axis else size for number, size in enumerate(whole.shape)]
        read = [checkpoint.read_part(f"model.layers.1.{name}.weight", Shard(rank, 2), tuple(own)) for rank in (0, 1)]
        assert torch.equal(torch.cat(read, dim=axis), whole)


@pytest.mark.parametrize("method", [*METHODS, "int8"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_logits_are_those_of_the_dequantized_weights(kind: str, method: str, tmp_path: Path) -> None:
    model = write_bitsandbytes(tmp_path, kind, method)
    assert format_of(tmp_path) is bitsandbytes and not is_safetensors(tmp_path)
    assert_equal_logits(tmp_path, model)


@pytest.mark.parametrize("method", ["nf4 nested", "int8"])
def test_modules_of_transformers_load_the_numbers(method: str, tmp_path: Path) -> None:
    expected = write_bitsandbytes(tmp_path, "llama", method)
    shape = parse_config(json.loads((tmp_path / "config.json").read_text()), "transformers")
    assert isinstance(shape, TransformersConfig)
    model = load_pretrained(tmp_path, shape, RunnerConfig(), CPU)
    found = dict(model.named_parameters())
    for name, numbers in expected.named_parameters():
        assert torch.equal(found[name].double(), numbers), name


def test_types_of_a_folder_and_its_fingerprint(tmp_path: Path) -> None:
    write_bitsandbytes(tmp_path, "llama", "nf4 nested")
    checkpoint = Checkpoint.open(tmp_path, "LlamaForCausalLM")
    assert checkpoint.stored_types() == "nf4 70%, F32 30%"
    assert checkpoint.dtype() == "float32"
    first = fingerprint(tmp_path, "bfloat16 none")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{NAME}.absmax"][3] ^= 1
    save_file(tensors, tmp_path / "model.safetensors")
    assert fingerprint(tmp_path, "bfloat16 none") != first


@pytest.mark.parametrize("entry", [{"quant_method": "bitsandbytes"}, {"load_in_8bit": True}])
def test_weights_that_only_config_json_calls_quantized_are_read_as_they_are(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    save_tiny("llama", tmp_path)
    plain = Checkpoint.open(tmp_path, "LlamaForCausalLM")
    assert format_of(tmp_path) is safetensors
    change_config(tmp_path, quantization_config=entry)
    assert format_of(tmp_path) is bitsandbytes
    checkpoint = Checkpoint.open(tmp_path, "LlamaForCausalLM")
    assert checkpoint.tensors == plain.tensors
    load_model(tmp_path, dtype="auto", device=CPU, max_model_len=None)


def changed_state(**fields: Any) -> Callable[[dict[str, Tensor]], None]:
    """Return a function that replaces fields of the JSON, or removes those that are None."""

    def change(parts: dict[str, Tensor]) -> None:
        name = next(name for name in parts if "quant_state" in name)
        state = json.loads(bytes(parts[name].tolist())) | fields
        parts[name] = json_tensor({key: value for key, value in state.items() if value is not None})

    return change


def replaced(end: str, tensor: Tensor | None) -> Callable[[dict[str, Tensor]], None]:
    def change(parts: dict[str, Tensor]) -> None:
        if tensor is None:
            del parts[end]
        else:
            parts[end] = tensor

    return change


STATE = ".quant_state.bitsandbytes__nf4"
REFUSALS: dict[str, tuple[Callable[[dict[str, Tensor]], None], str]] = {
    "broken JSON": (replaced(STATE, json_tensor(b'{"shape": [700,')), f"{STATE} in .* is not the JSON"),
    "no text": (replaced(STATE, json_tensor(b"\xff\xfe")), "is not the JSON"),
    "a list": (replaced(STATE, json_tensor([1])), "is not the JSON"),
    "state of floats": (replaced(STATE, torch.zeros(9)), f"{STATE} in .* has dtype F32"),
    "no shape": (changed_state(shape=None), "is not the JSON of a weight in nf4: KeyError"),
    "one axis": (changed_state(shape=[67200]), "is not the JSON"),
    "negative": (changed_state(shape=[-700, -96]), "-700 is not a positive integer"),
    "fraction": (changed_state(blocksize=64.5), "64.5 is not a positive integer"),
    "odd block": (changed_state(blocksize=63), "blocksize 63"),
    "other type": (changed_state(quant_type="fp4"), "quant_type 'fp4'"),
    "no offset": (changed_state(nested_offset=None), "is not the JSON"),
    "offset NaN": (changed_state(nested_offset=float("nan")), "nested_offset nan"),
    "half scales": (changed_state(nested_dtype="float16"), "nested_dtype 'float16'"),
    "other shape": (changed_state(shape=[700, 98]), r"has dtype U8 and shape \(33600, 1\); .* \(34300, 1\) in U8"),
    "transposed": (replaced("", torch.zeros(1, 33600, dtype=torch.uint8)), r"has dtype U8 and shape \(1, 33600\)"),
    "codes int32": (replaced("", torch.zeros(8400, 1, dtype=torch.int32)), "has dtype I32"),
    "no absmax": (replaced(".absmax", None), rf"tensor {NAME} in .* does not have tensor {NAME}\.absmax"),
    "short absmax": (replaced(".absmax", torch.zeros(9, dtype=torch.uint8)), r"absmax .* \(9,\); .* U8 .*\(1050,\)"),
    "plain absmax": (replaced(".absmax", torch.zeros(1050)), r"absmax in .* has dtype F32 .*; it must have U8"),
    "short map": (replaced(".quant_map", torch.zeros(15)), r"quant_map in .*\(15,\); .* F32 and shape \(16,\)"),
    "no nested map": (replaced(".nested_quant_map", None), "does not have tensor .*nested_quant_map"),
    "nested absmax": (replaced(".nested_absmax", torch.zeros(4)), r"nested_absmax in .* \(4,\); .* \(5,\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_tensors_that_do_not_fit_are_named(case: str, tmp_path: Path) -> None:
    change, message = REFUSALS[case]
    parts = packed_4bit(weight(), nested_size=256)
    change(parts)
    with pytest.raises(ModelError, match=message) as caught:
        Checkpoint.open(write(tmp_path, parts), "LlamaForCausalLM")
    assert caught.value.details["file"] == str(tmp_path / "model.safetensors")
    assert str(caught.value.details["tensor"]).startswith(NAME)


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        ("SCB", torch.zeros(699), r"SCB in .* shape \(699,\); it must have F32 and shape \(700,\)"),
        ("SCB", torch.zeros(700).half(), "SCB in .* has dtype F16"),
        ("weight_format", torch.tensor(1, dtype=torch.uint8), "weight_format in .* another order"),
        ("weight", torch.zeros(700, dtype=torch.int8), r"shape \(700,\); a weight of int8 has two axes"),
    ],
)
def test_tensors_of_8_bits_that_do_not_fit_are_named(part: str, tensor: Tensor, message: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {**packed_int8(weight()), part: tensor}, start=MODULE)
    with pytest.raises(ModelError, match=message):
        Checkpoint.open(folder, "LlamaForCausalLM")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("end", [".nested_absmax", ".nested_quant_map", ".quant_map", ".absmax", "SCB"])
def test_a_scale_that_is_not_finite_is_named(end: str, number: float, tmp_path: Path) -> None:
    if end == "SCB":
        parts, start = packed_int8(weight()), MODULE
    else:
        parts, start = packed_4bit(weight(), nested_size=None if end == ".absmax" else 256), NAME
    parts[end] = parts[end].clone()
    parts[end][-1] = number
    stored = stored_in(write(tmp_path, parts, start=start))
    with pytest.raises(ModelError, match=rf"{end} in .* infinite or not a number") as caught:
        stored.dense()
    assert caught.value.details["tensor"] == start + end


def test_other_tensors_of_a_weight_are_not_dropped(tmp_path: Path) -> None:
    write_bitsandbytes(tmp_path, "llama", "nf4")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, f"{NAME}.shift": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"up_proj\.weight\.shift, which the architecture does not use"):
        load_model(tmp_path, dtype="auto", device=CPU, max_model_len=None)
