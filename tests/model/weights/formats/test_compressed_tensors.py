"""The format compressed-tensors: parameters of whole folders, ranks' parts, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.model_folder import ORIGINAL
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.checkpoint_fingerprint import fingerprint
from chairlift.model.weights.formats import compressed_tensors
from chairlift.model.weights.formats.registry import format_of, is_safetensors
from chairlift.model.weights.shard import Shard
from support_compressed import FORMS, write_quantized
from support_shares import for_each

LLAMA = "LlamaForCausalLM"
MODULE = "model.layers.1.mlp.down_proj"
SUPPORTED = [name for name, form in FORMS.items() if form.entry()["quant_method"] == "compressed-tensors"]


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def change_entry(folder: Path, change: Callable[[dict[str, Any]], object], field: str = "quantization_config") -> Path:
    content = json.loads((folder / "config.json").read_text())
    entry = content.pop("quantization_config")
    change(entry)
    (folder / "config.json").write_text(json.dumps({**content, field: entry}))
    return folder


@for_each("form", SUPPORTED)
def test_every_number_is_that_of_the_formula(form: str, tmp_path: Path) -> None:
    model = write_quantized(tmp_path, "llama", FORMS[form])
    assert format_of(tmp_path) is compressed_tensors and not is_safetensors(tmp_path)
    checkpoint, expected = Checkpoint.open(tmp_path, LLAMA), dict(model.named_parameters())
    assert checkpoint.tensors.keys() == expected.keys()
    for name, numbers in expected.items():
        assert torch.equal(checkpoint.read(name).double(), numbers), name
        assert checkpoint.tensors[name].shape == tuple(numbers.shape)
    checkpoint.check({name: tuple(numbers.shape) for name, numbers in expected.items()})
    checkpoint.check_not_quantized()


@pytest.mark.parametrize(
    ("form", "dtype"),
    [("4-bit groups", "compressed-tensors 4-bit"), ("8-bit packed", "compressed-tensors 8-bit"),
     ("int8 rows", "compressed-tensors 8-bit"), ("float blocks", "F8_E4M3")],
)  # fmt: skip
def test_the_type_of_the_numbers_is_shown(form: str, dtype: str, tmp_path: Path) -> None:
    write_quantized(tmp_path, "llama", FORMS[form])
    assert Checkpoint.open(tmp_path, LLAMA).stored_types() == f"{dtype} 70%, F32 30%"


@for_each("form", SUPPORTED)
def test_the_parts_of_two_ranks_are_the_whole(form: str, tmp_path: Path) -> None:
    model = write_quantized(tmp_path, "llama", FORMS[form])
    checkpoint = Checkpoint.open(tmp_path, LLAMA)
    for name, axis in ((f"{MODULE}.weight", 1), ("model.layers.0.self_attn.q_proj.weight", 0)):
        whole = dict(model.named_parameters())[name]
        shape = tuple(size // 2 if at == axis else size for at, size in enumerate(whole.shape))
        parts = [checkpoint.read_part(name, Shard(rank, 2), shape, torch.float64) for rank in range(2)]
        assert torch.equal(torch.cat(parts, axis), whole)


def test_the_older_field_and_the_older_nesting_count(tmp_path: Path) -> None:
    write_quantized(tmp_path, "llama", FORMS["float blocks"])
    expected = Checkpoint.open(tmp_path, LLAMA).read(f"{MODULE}.weight")

    def nest(entry: dict[str, Any]) -> None:
        entry["quantization_config"] = {"config_groups": entry.pop("config_groups"), "format": entry.pop("format")}

    change_entry(tmp_path, nest, "compression_config")
    assert torch.equal(Checkpoint.open(tmp_path, LLAMA).read(f"{MODULE}.weight"), expected)
    content = json.loads((tmp_path / "config.json").read_text())
    content["compression_config"]["quantization_config"]["format"] = "nvfp4-pack-quantized"
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UnsupportedModel, match=r"nvfp4-pack-quantized' \(compression_config in config\.json\)"):
        Checkpoint.open(tmp_path, LLAMA)


def test_modules_may_be_stored_in_several_forms(tmp_path: Path) -> None:
    model = write_quantized(tmp_path, "llama", FORMS["4-bit groups"])
    tensors, dense = FORMS["float blocks"].encode(torch.randn(64, 96), torch.Generator())

    def replace_module(stored: dict[str, Tensor]) -> None:
        for name in [name for name in stored if name.startswith(f"{MODULE}.")]:
            del stored[name]
        stored.update({f"{MODULE}.{last}": tensor for last, tensor in tensors.items()})

    def mixed(entry: dict[str, Any]) -> None:
        group = FORMS["float blocks"].entry()["config_groups"]["group_0"]
        entry["format"] = "mixed-precision"
        entry["config_groups"] |= {"group_1": group, "group_2": {"targets": ["Attention"], "weights": None}}

    change_entry(rewrite(tmp_path, replace_module), mixed)
    checkpoint = Checkpoint.open(tmp_path, LLAMA)
    assert torch.equal(checkpoint.read(f"{MODULE}.weight"), dense)
    other = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(checkpoint.read(other).double(), dict(model.named_parameters())[other])


def test_scales_of_activations_and_of_the_cache_are_left_out(tmp_path: Path) -> None:
    model = write_quantized(tmp_path, "llama", FORMS["int8 rows"])
    attention = "model.layers.0.self_attn"
    names = ("k_scale", "v_scale", "q_scale", "k_proj.output_scale", "k_proj.output_zero_point", "v_zero_point")
    rewrite(tmp_path, lambda stored: stored.update({f"{attention}.{name}": torch.ones(1) for name in names}))
    checkpoint = Checkpoint.open(tmp_path, LLAMA)
    assert checkpoint.tensors.keys() == dict(model.named_parameters()).keys()


def test_a_folder_that_quantizes_only_the_cache_has_its_weights(tmp_path: Path) -> None:
    save_file({"lm_head.weight": torch.ones(2, 2), "model.layers.0.self_attn.k_scale": torch.ones(1)},
              tmp_path / "model.safetensors")  # fmt: skip
    entry = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "kv_cache_scheme": {}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": entry}))
    assert list(Checkpoint.open(tmp_path, LLAMA).tensors) == ["lm_head.weight"]


def group(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda entry: entry["config_groups"]["group_0"]["weights"].update(fields)


@for_each(
    ("change", "how"),
    [
        *((lambda entry, name=name: entry.update(format=name), f"in format '{name}'")
          for name in ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "marlin-24", "sparse-bitmask")),
        (lambda entry: entry["config_groups"]["group_0"].update(format="mxfp8-quantized"), "in format 'mxfp8-quantiz"),
        (lambda entry: entry.update(sparsity_config={"format": "sparse-24-bitmask"}), "in format 'sparse-24-bitmask'"),
        (lambda entry: entry.update(transform_config={"config_groups": {"R1": {}}}), "after rotations"),
        (group(num_bits=3), "to 3-bit numbers of type 'int'"),
        (group(num_bits=4, type="float"), "to 4-bit numbers of type 'float'"),
        (group(strategy="tensor_group"), "with scales by 'tensor_group'"),
    ],
)  # fmt: skip
def test_what_changes_the_meaning_of_tensors_is_refused(
    change: Callable[[dict[str, Any]], object], how: str, tmp_path: Path
) -> None:
    change_entry(write_folder(tmp_path), change)
    with pytest.raises(UnsupportedModel) as caught:
        Checkpoint.open(tmp_path, LLAMA)
    assert caught.value.message.startswith(f"the weights are quantized with compressed-tensors {how}")
    assert caught.value.message.endswith(f"(quantization_config in config.json), which is not supported; {ORIGINAL}")


def write_folder(folder: Path, form: str = "4-bit groups") -> Path:
    write_quantized(folder, "llama", FORMS[form])
    return folder


@for_each(
    ("form", "change", "message"),
    [
        ("4-bit groups", {"weight_scale": None}, "weight_packed in .* and its module has no weight_scale"),
        ("4-bit groups", {"weight_shape": None}, "weight_packed in .* and its module has no weight_shape"),
        ("4-bit groups", {"weight_shape": torch.ones(3, dtype=torch.int64)}, r"weight_shape in .* shape \(3,\)"),
        ("4-bit groups", {"weight_packed": torch.zeros(64, 9, dtype=torch.int32)},
         r"weight_packed in .* shape \(64, 9\), which is not that of 4-bit or 8-bit numbers of .* \(64, 96\)"),
        ("4-bit groups", {"weight_packed": torch.zeros(64, 12, dtype=torch.int64)}, "weight_packed in .* dtype I64"),
        ("4-bit groups", {"weight": torch.ones(64, 96)}, "weight is stored twice: in model.safetensors .* and model"),
        ("int8 rows", {"weight_scale": None}, "weight in .* is quantized, and its module has no weight_scale"),
        ("float rows", {"weight_scale": None}, "weight in .* is quantized, and its module has no weight_scale"),
        ("float rows", {"weight": torch.ones(64, 96)}, "weight in .* has a weight_scale and dtype F32"),
        ("float rows", {"weight": torch.ones(64, 96).to(torch.float8_e5m2)}, "weight in .* dtype F8_E5M2"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    form: str, change: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    def apply(stored: dict[str, Tensor]) -> None:
        for last, tensor in change.items():
            if tensor is None:
                del stored[f"{MODULE}.{last}"]
            else:
                stored[f"{MODULE}.{last}"] = tensor

    rewrite(write_folder(tmp_path, form), apply)
    with pytest.raises(ModelError, match=rf"tensor {MODULE}\.{message}"):
        Checkpoint.open(tmp_path, LLAMA)


def test_a_fingerprint_changes_with_the_scales(tmp_path: Path) -> None:
    first = fingerprint(write_folder(tmp_path), "bfloat16 none")
    assert fingerprint(tmp_path, "bfloat16 none") == first
    rewrite(tmp_path, lambda stored: stored[f"{MODULE}.weight_scale"].mul_(2))
    assert fingerprint(tmp_path, "bfloat16 none") != first
