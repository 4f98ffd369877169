"""read_adapter: the names and shapes of a file must fit the model and the adapter's config; damage is one sentence.

The numbers are compared with PEFT in tests/oracle/test_adapters.py.
"""

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.lora.base_weights import base_weights
from chairlift.model.lora.peft_adapter import AdapterTargets, ReadAdapter, read_adapter
from support_adapters import ADAPTER_KINDS, adaptable_of, adapted_model
from support_models import save_tiny

Tensors = dict[str, Tensor]
PREFIX = "base_model.model.model.layers.0.self_attn"


@cache
def model_folder() -> Path:
    return save_tiny("qwen3", Path(mkdtemp()), seed=5)


@cache
def adapter_folder(fields: str) -> Path:
    folder = Path(mkdtemp())
    adapted_model("qwen3", 5, ADAPTER_KINDS[fields], 1, set(adaptable_of(model_folder()))).save_pretrained(folder)
    return folder


def read(folder: Path) -> ReadAdapter:
    config, adaptable = read_decoder_config(model_folder()), adaptable_of(model_folder())
    weights = base_weights(model_folder(), config, adaptable, torch.float64)
    return read_adapter(folder, AdapterTargets(config, adaptable, weights))


def changed(
    tmp_path: Path, change: Callable[[Tensors], Any] = lambda tensors: None, fields: str = "all", **config: Any
) -> Path:
    """Return a copy of an adapter with changed tensors and fields."""
    folder = tmp_path / "changed"
    shutil.copytree(adapter_folder(fields), folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    content = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**content, **config}))
    return folder


def renamed(old: str, new: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return change


def test_the_digest_is_of_the_files_wherever_they_are(tmp_path: Path) -> None:
    first, same = read(adapter_folder("all")), changed(tmp_path)
    shutil.copy(adapter_folder("all") / "adapter_config.json", same)
    shutil.copy(adapter_folder("all") / "adapter_model.safetensors", same)
    assert read(same).digest == first.digest != read(adapter_folder("q and v")).digest
    (same / "adapter_config.json").write_text((same / "adapter_config.json").read_text() + "\n")
    assert read(same).digest != first.digest


def test_an_adapter_name_and_a_missing_prefix_change_nothing(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        renamed(".lora_A.weight", ".lora_A.default.weight")(tensors)
        renamed(".lora_B.weight", ".lora_B.default.weight")(tensors)
        renamed("base_model.model.", "")(tensors)

    found, expected = (read(each).weights.projections for each in (changed(tmp_path, change), adapter_folder("all")))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name].b, expected[name].b) for name in found)


def test_a_saved_table_that_is_the_model_s_own_is_not_kept(tmp_path: Path) -> None:
    adapter = read(adapter_folder("embedding"))
    assert adapter.weights.embedding is not None and not adapter.weights.replaced
    assert set(read(adapter_folder("saved")).weights.replaced) == {"lm_head", "model.embed_tokens"}


def _drop(part: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[next(name for name in sorted(tensors) if part in name)]

    return change


def _cut(part: str, axis: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        name = next(name for name in sorted(tensors) if part in name)
        tensors[name] = tensors[name].narrow(axis, 0, tensors[name].shape[axis] - 1).contiguous()

    return change


def _twice(tensors: Tensors) -> None:
    name = next(name for name in sorted(tensors) if "lora_A" in name)
    tensors[name.replace("lora_A.weight", "lora_A.default.weight")] = tensors[name].clone()


def _as_integers(tensors: Tensors) -> None:
    name = next(iter(tensors))
    tensors[name] = tensors[name].to(torch.int32)


@pytest.mark.parametrize(
    ("change", "config", "problem"),
    [
        (renamed("q_proj", "query"), {}, "tensors for modules that the model does not have"),
        (renamed("layers.0", "layers.99"), {}, "tensors for modules that the model does not have"),
        (renamed("lora_A", "lora_C"), {}, "tensors for modules that the model does not have"),
        (renamed(".mlp.up_proj", ".mlp.experts.up_proj"), {}, "tensors for modules that the model does not have"),
        (_drop("lora_A"), {}, "has no lora_a of module"),
        (_drop("lora_B"), {}, "has no lora_b of module"),
        (_cut("lora_A", 0), {}, "require"),
        (_cut("lora_A", 1), {}, "require"),
        (_cut("q_proj.lora_B", 1), {}, "require"),
        (_cut("q_proj.lora_B", 0), {}, "require"),
        (_as_integers, {}, "has dtype torch.int32"),
        (lambda tensors: tensors.clear(), {}, "has no tensors"),
        (_twice, {}, "has two tensors of one meaning"),
        (renamed("q_proj", "q\nproj"), {}, "whose name is not printable"),
        (lambda tensors: None, {"r": 5}, "require"),
        (lambda tensors: None, {"target_modules": ["q_proj"]}, "does not name modules"),
        (lambda tensors: None, {"target_modules": r".*_proj|lm_head"}, "names modules of which the file has no"),
        (lambda tensors: None, {"target_modules": r".*_proj|.*embed_tokens"}, "do not agree about the module"),
        (lambda tensors: None, {"modules_to_save": ["lm_head"]}, "saves modules of which the file has no tensors"),
        (lambda tensors: None, {"modules_to_save": ["score"]}, "saves modules of which the file has no tensors"),
        (lambda tensors: None, {"use_dora": True}, "has no magnitude"),
        (lambda tensors: None, {"fan_in_fan_out": True}, "fan_in_fan_out"),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(
    change: Callable[[Tensors], Any], config: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=problem) as caught:
        read(changed(tmp_path, change, **config))
    assert "\n" not in caught.value.message and len(caught.value.message) < 600


def test_magnitudes_need_the_option(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="though use_dora is not set"):
        read(changed(tmp_path, fields="dora", use_dora=False))
    with pytest.raises(ModelError, match="lora_magnitude_vector"):
        read(changed(tmp_path / "cut", _cut("magnitude", 0), fields="dora"))


def test_what_is_no_adapter_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no folder"):
        read(tmp_path / "missing")
    with pytest.raises(ModelError, match="there is no folder"):
        read(adapter_folder("all") / "adapter_config.json")
    with pytest.raises(ModelError, match="is a model and no adapter"):
        read(model_folder())
    with pytest.raises(ModelError, match=r"no file adapter_config\.json"):
        read(tmp_path)
    shutil.copy(adapter_folder("all") / "adapter_config.json", tmp_path)
    with pytest.raises(ModelError, match=r"no file adapter_model\.safetensors"):
        read(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04N.")
    with pytest.raises(ModelError, match="a pickle, which can run any code"):
        read(tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_raise_nothing_else(seed: int, tmp_path: Path) -> None:
    rng, folder = random.Random(seed), changed(tmp_path)
    path = folder / "adapter_model.safetensors"
    content = bytearray(path.read_bytes())
    if seed % 2:
        path.write_bytes(content[: rng.randrange(len(content))])
    else:
        for _ in range(rng.randrange(1, 5)):  # in the header, where they matter
            content[rng.randrange(2000)] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    if seed % 2:
        with pytest.raises(ModelError):
            read(folder)
        return
    with suppress(ModelError):  # a name may have changed to one of the same meaning
        read(folder)
