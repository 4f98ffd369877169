"""Weights from small real files: sharded, tied, truncated, with too few or too many tensors, mapped while read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.loading.model_building import load_model, parameter_shapes
from chairlift.model.weights.checkpoint import Checkpoint
from support_checkpoints import rewrite
from support_models import save_tiny

CPU = torch.device("cpu")
NORM = "model.norm.weight"
QUERY = "model.layers.1.self_attn.q_proj.weight"


def load(folder: Path, dtype: str = "auto") -> Any:
    return load_model(folder, dtype=dtype, device=CPU, max_model_len=None)


def shard(folder: Path, count: int = 3) -> list[Path]:
    """Split the one file of a folder into several with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for index in range(count):
        part = dict(list(tensors.items())[index::count])
        name = f"model-{index + 1:05}-of-{count:05}.safetensors"
        save_file(part, folder / name)
        weight_map.update(dict.fromkeys(part, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return sorted(folder.glob("model-*.safetensors"))


def change_index(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_tiny("llama", tmp_path / "llama", seed=1)


def parameters(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    config = read_decoder_config(folder)
    take = Checkpoint.open(folder, config.architecture).loader(dtype, CPU)
    return {name: take(name, shape) for name, shape in parameter_shapes(config).items()}


def test_every_tensor_arrives_as_it_was_saved(llama: Path) -> None:
    saved = load_file(llama / "model.safetensors")
    loaded = parameters(llama)
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    rounded = parameters(llama, torch.bfloat16)
    assert all(torch.equal(rounded[name], saved[name].bfloat16()) for name in saved)


def test_float32_is_read_for_a_model_of_16_bits(llama: Path) -> None:
    loader = Checkpoint.open(llama, "LlamaForCausalLM").loader(torch.bfloat16, CPU)
    saved = load_file(llama / "model.safetensors")[NORM]
    assert torch.equal(loader.float32(NORM, tuple(saved.shape)), saved)
    assert not torch.equal(loader(NORM, tuple(saved.shape)).float(), saved)


def test_shards_are_read_as_one(llama: Path) -> None:
    whole = parameters(llama)
    shard(llama)
    parts = parameters(llama)
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    load(llama)


def test_tensors_are_read_by_mapping_the_file(llama: Path) -> None:
    checkpoint = Checkpoint.open(llama, "LlamaForCausalLM")
    read = [checkpoint.read(name) for name in checkpoint.tensors]
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(llama / "model.safetensors")):
            start, end = line.split()[0].split("-")
            spans.append((int(start, 16), int(end, 16)))
    assert spans
    for tensor in read:
        assert any(start <= tensor.data_ptr() < end for start, end in spans)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_loaded_model_does_not_keep_the_file_mapped(llama: Path, dtype: str) -> None:
    model, _ = load(llama, dtype)
    assert str(llama) not in Path("/proc/self/maps").read_text()
    assert model.vocab_size == 304


@pytest.mark.parametrize("kept", [0, 4, 7, 8, 100, 5000, -1])
def test_a_truncated_file_ends_with_its_name(llama: Path, kept: int) -> None:
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated or not a safetensors file"):
        load(llama)


def test_a_truncated_shard_ends_with_its_name(llama: Path) -> None:
    last = shard(llama)[-1]
    last.write_bytes(last.read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"model-00003-of-00003\.safetensors is truncated") as caught:
        load(llama)
    assert caught.value.details["file"] == str(last)


def test_a_pointer_of_git_lfs_is_no_weight_file(llama: Path) -> None:
    (llama / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated or not a safetensors file"):
        load(llama)


def test_a_missing_shard_ends_with_its_name(llama: Path) -> None:
    shard(llama)[1].unlink()
    with pytest.raises(ModelError, match=r"no file model-00002-of-00003\.safetensors in .*lists it"):
        load(llama)


def test_a_surplus_shard_ends_with_its_name(llama: Path) -> None:
    (llama / "consolidated.safetensors").write_bytes(shard(llama)[0].read_bytes())  # Mistral's own format beside ours
    load(llama)
    (llama / "model-00001-of-00002.safetensors").write_bytes(b"of an older download")
    with pytest.raises(ModelError, match=r"index\.json does not list the shard .*model-00001-of-00002\.safetensors"):
        load(llama)


def test_a_folder_without_weights_says_what_was_looked_for(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json in"):
        load(llama)
    (llama / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle; only safetensors are supported"):
        load(llama)


def test_a_missing_tensor_is_named(llama: Path) -> None:
    rewrite(llama, lambda tensors: tensors.pop(QUERY))
    with pytest.raises(ModelError, match=rf"does not have tensor {QUERY}$"):
        load(llama)
    rewrite(llama, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(
        ModelError, match=rf"does not have tensor {QUERY} and 1 more|does not have tensor lm_head.weight and 1 more"
    ):
        load(llama)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("model.layers.3.mlp.up_proj.weight", "or layer 3 is beyond num_hidden_layers of config.json"),
        ("model.layers.0.self_attn.q_proj.bias", "quantized or of another architecture"),
        ("model.layers.0.self_attn.q_norm.weight", "quantized or of another architecture"),
        ("model.layers.0.mlp.up_proj.weight_scale", "quantized or of another architecture"),
        ("lm_head.bias", "quantized or of another architecture"), ("x", "quantized or of another architecture"),
    ],
)  # fmt: skip
def test_an_unused_tensor_of_what_is_computed_is_an_error_that_names_it(llama: Path, name: str, hint: str) -> None:
    rewrite(llama, lambda tensors: tensors.update({name: torch.zeros(2)}))
    with pytest.raises(
        ModelError, match=rf"model\.safetensors has tensor {name}, which the architecture does not"
    ) as caught:
        load(llama)
    assert hint in caught.value.message


def test_a_bias_of_zeros_is_left_out_and_another_is_not(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Folders of AutoGPTQ have a bias for every quantized module."""
    name, bias = "model.layers.1.self_attn.k_proj.bias", torch.zeros(32)
    rewrite(llama, lambda tensors: tensors.update({name: bias}))
    load(llama)
    assert f"tensors that the architecture does not use are left out (1): {name}" in caplog.text
    bias[31] = 1e-3
    rewrite(llama, lambda tensors: tensors.update({name: bias}))
    with pytest.raises(ModelError, match=r"k_proj\.bias, which the architecture does not use"):
        load(llama)


def test_a_bias_of_a_tied_head_is_an_error_too(tmp_path: Path) -> None:
    folder = save_tiny("qwen2", tmp_path, seed=1)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.bias": torch.zeros(2)}))
    with pytest.raises(ModelError, match=r"has tensor lm_head\.bias, which"):
        load(folder)


def test_unused_tensors_beside_what_is_computed_are_left_out_with_one_warning(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hidden = torch.randn(2, 64)
    expected = load(llama)[0].logits(hidden)
    caplog.clear()
    names = [
        "score.weight",
        "mtp.layers.0.norm.weight",
        "mtp.fc.weight",
        "visual.blocks.0.weight",
        "v_head.summary.bias",
    ]
    rewrite(llama, lambda tensors: tensors.update({name: torch.zeros(2, dtype=torch.int8) for name in names}))
    assert torch.equal(load(llama)[0].logits(hidden), expected)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.getMessage() == (
        f"{llama}: tensors that the architecture does not use are left out (5): mtp.fc.weight, "
        "mtp.layers.0.norm.weight, score.weight and 2 more"
    )
    rewrite(llama, lambda tensors: tensors.pop(QUERY))
    with pytest.raises(ModelError, match=rf"does not have tensor {QUERY}$"):
        load(llama)


def test_a_checkpoint_of_the_base_model_has_no_other_parts_beside_the_decoder(tmp_path: Path) -> None:
    folder = save_tiny("qwen2", tmp_path, seed=1)

    def save_as_base_model(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)
        tensors["visual.blocks.0.weight"] = torch.zeros(2)

    rewrite(folder, save_as_base_model)
    load(folder)
    rewrite(folder, lambda tensors: tensors.update({"embed_norm.weight": torch.zeros(2)}))
    with pytest.raises(ModelError, match=r"has tensor embed_norm\.weight, which"):
        load(folder)


def test_a_wrong_shape_is_named_with_both_shapes(llama: Path) -> None:
    rewrite(llama, lambda tensors: tensors.update({QUERY: torch.zeros(64, 63)}))
    with pytest.raises(ModelError, match=rf"tensor {QUERY} in .* has shape \(64, 63\), config\.json requires \(64, 64"):
        load(llama)


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_a_tensor_that_is_no_known_float_is_named(llama: Path, kind: torch.dtype) -> None:
    rewrite(llama, lambda tensors: tensors.update({QUERY: tensors[QUERY].to(kind)}))
    with pytest.raises(ModelError, match=rf"tensor {QUERY} in .*; supported are F64"):
        load(llama)


@pytest.mark.share(1)
@pytest.mark.parametrize(("kind", "name"), [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8")])
def test_a_tensor_of_eight_bits_is_quantized(llama: Path, kind: torch.dtype, name: str) -> None:
    Checkpoint.open(llama, "LlamaForCausalLM").check_not_quantized()
    rewrite(llama, lambda tensors: tensors.update({"mask": torch.ones(2, dtype=torch.uint8)}))
    Checkpoint.open(llama, "LlamaForCausalLM").check_not_quantized()
    rewrite(llama, lambda tensors: tensors.update({QUERY: tensors[QUERY].to(kind)}))
    with pytest.raises(ModelError, match=rf"tensor {QUERY} in .* has dtype {name}; supported are F64"):
        Checkpoint.open(llama, "LlamaForCausalLM").check_not_quantized()


def test_a_tensor_that_the_index_places_wrongly_is_named(llama: Path) -> None:
    first, second, _ = shard(llama)
    change_index(llama, lambda places: places.update({QUERY: first.name, NORM: first.name}))
    with pytest.raises(ModelError, match=r"model-00001-of-00003\.safetensors does not have tensor"):
        load(llama)
    assert second.exists()


def test_a_tensor_in_two_shards_is_named(llama: Path) -> None:
    for file in shard(llama)[:2]:
        save_file({**load_file(file), QUERY: torch.zeros(64, 64)}, file)
    with pytest.raises(ModelError, match=rf"tensor {QUERY} is stored twice: in model-0000"):
        load(llama)


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "sub/a.safetensors", "pytorch_model.bin", 7])
def test_an_index_cannot_lead_out_of_the_folder(llama: Path, place: Any) -> None:
    shard(llama)
    change_index(llama, lambda places: places.update({NORM: place}))
    with pytest.raises(ModelError, match=r"lists model\.norm\.weight in .*not a safetensors file in this folder"):
        load(llama)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": []}', "[]", "{"])
def test_a_broken_index_ends_with_its_name(llama: Path, index: str) -> None:
    shard(llama)
    (llama / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        load(llama)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "rotary_emb.inv_freq",
        "model.rotary_emb.original_inv_freq", "model.layers.0.self_attn.rotary_emb.cos_cached",
    ],
)  # fmt: skip
def test_an_old_buffer_of_frequencies_is_left_out(llama: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    rewrite(llama, lambda tensors: tensors.update({name: torch.zeros(8)}))
    load(llama)
    assert not caplog.records


def test_a_tied_head_may_be_stored_or_not(tmp_path: Path) -> None:
    folder = save_tiny("qwen2", tmp_path, seed=1)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    hidden = torch.randn(2, 64)
    model, config = load(folder)
    assert config.tie_word_embeddings
    expected = model.logits(hidden)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    model, config = load(folder)
    assert config.tie_word_embeddings
    assert torch.equal(model.logits(hidden), expected)


def test_a_tied_head_with_other_numbers_is_a_head_of_its_own_as_in_transformers(tmp_path: Path) -> None:
    import transformers

    folder = save_tiny("qwen2", tmp_path, seed=1)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] * 2}))
    model, config = load(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    hidden = torch.randn(2, 64)
    assert not config.tie_word_embeddings
    assert torch.allclose(model.logits(hidden), theirs.lm_head(hidden), rtol=1e-4, atol=1e-5)


def test_a_tied_head_alone_is_the_embedding_too(tmp_path: Path) -> None:
    folder = save_tiny("qwen2", tmp_path, seed=1)
    hidden = torch.randn(2, 64)
    expected = load(folder)[0].logits(hidden)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors.pop("model.embed_tokens.weight")}))
    assert torch.equal(load(folder)[0].logits(hidden), expected)


def test_a_checkpoint_of_the_base_model_is_that_of_the_causal_one(tmp_path: Path) -> None:
    """Embedding models such as Qwen3-Embedding are saved so: without `model.`, and without the tied head."""
    folder = save_tiny("qwen2", tmp_path, seed=1)
    expected = parameters(folder)

    def save_as_base_model(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    rewrite(folder, save_as_base_model)
    assert not any(name.startswith("model.") for name in load_file(folder / "model.safetensors"))
    load(folder)
    found = parameters(folder)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_an_untied_head_must_be_stored(llama: Path) -> None:
    rewrite(llama, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"does not have tensor lm_head\.weight"):
        load(llama)
