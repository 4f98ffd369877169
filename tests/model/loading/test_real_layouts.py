"""The published shapes of Llama 3.2, Qwen2.5, Qwen3, Mistral and Gemma 3, names and all, without their weights.

Names and shapes come from transformers' models on the meta device; files have the full size and are hollow.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.loading.model_building import load_model, parameter_shapes
from chairlift.model.weights.checkpoint import Checkpoint
from support_checkpoints import HEAD_STORED, PUBLISHED, SHARDS, write_sparse_checkpoint
from support_shares import FULL, for_each

MULTIMODAL = "gemma-3-4b-it"
LOADED = (
    "Qwen2.5-0.5B",
    *(pytest.param(name, marks=pytest.mark.full) for name in ("Llama-3.2-1B", "Qwen3-0.6B", "gemma-3-1b-it")),
)
OLD_PREFIXES = {
    "model.language_model.": "language_model.model.", "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.", "lm_head.": "language_model.lm_head.",
}  # fmt: skip
PARAMETERS = {
    "Llama-3.2-1B": 1_235_814_400, "Llama-3.2-3B": 3_212_749_824, "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-7B": 7_615_616_512, "Qwen3-0.6B": 596_049_920, "Qwen3-8B": 8_190_735_360,
    "Mistral-7B-v0.1": 7_241_732_096, "Mistral-7B-v0.3": 7_248_023_552, "gemma-3-1b-it": 999_885_952,
    "gemma-3-4b-it": 3_880_263_168,
}  # fmt: skip


def config_of(name: str) -> Any:
    content = {**PUBLISHED[name]}
    return transformers.AutoConfig.for_model(**content)


@cache
def stored_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the published model: without a tied lm_head, unless the file stores it."""
    config = config_of(name)
    with torch.device("meta"):
        model = getattr(transformers, PUBLISHED[name]["architectures"][0])(config)
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    if config.tie_word_embeddings and name not in HEAD_STORED:
        del shapes["lm_head.weight"]
    return shapes


def old_names(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Rename the wrapper's tensors as transformers 4 published them."""
    renamed = {}
    for name, shape in shapes.items():
        old = next(old for old in OLD_PREFIXES if name.startswith(old))
        renamed[OLD_PREFIXES[old] + name.removeprefix(old)] = shape
    return renamed


def dialects(name: str) -> list[dict[str, Any]]:
    """The published config.json, and the one that transformers 5 writes for it."""
    return [PUBLISHED[name], json.loads(config_of(name).to_json_string(use_diff=False))]


@for_each("name", PUBLISHED)
def test_both_dialects_of_a_published_config_say_the_same(name: str) -> None:
    old, new = dialects(name)
    assert "rope_parameters" in (new.get("text_config") or new)
    assert "torch_dtype" not in new
    assert parse_decoder_config(new) == parse_decoder_config(old)
    assert parse_decoder_config(old).dtype == "bfloat16"


@for_each("name", PUBLISHED)
def test_the_architecture_has_as_many_parameters_as_the_hub_counts(name: str) -> None:
    shapes = parameter_shapes(parse_decoder_config(PUBLISHED[name]))
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == PARAMETERS[name]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_fit_by_name_and_shape(name: str, tmp_path: Path) -> None:
    content = PUBLISHED[name]
    config = parse_decoder_config(content)
    layouts = [stored_shapes(name)]
    if name == MULTIMODAL:
        layouts.append(old_names(stored_shapes(name)))
    for index, shapes in enumerate(layouts):
        folder = write_sparse_checkpoint(tmp_path / str(index), content, shapes, SHARDS.get(name, 1))
        checkpoint = Checkpoint.open(folder, config.architecture)
        assert checkpoint.resolve_tied_embeddings(config.tie_word_embeddings) == config.tie_word_embeddings
        checkpoint.check(parameter_shapes(config))
        assert checkpoint.dtype() == "bfloat16"


@pytest.mark.full
@pytest.mark.parametrize("name", LOADED)
def test_published_files_load(name: str, tmp_path: Path) -> None:
    folder = write_sparse_checkpoint(tmp_path, {}, stored_shapes(name), SHARDS.get(name, 1))
    for content in dialects(name)[: 2 if FULL else 1]:  # they are parsed alike, as a test above shows
        (folder / "config.json").write_text(json.dumps(content))
        model, config = load_model(folder, dtype="auto", device=torch.device("cpu"), max_model_len=16)
        assert config.dtype == "bfloat16"
        assert config.tie_word_embeddings
        assert model.vocab_size == content["vocab_size"]
        assert len(model.groups.caches) * len(model.groups.windows) >= config.num_layers


@pytest.mark.parametrize("old", [True, False])
def test_the_multimodal_wrapper_loads_its_text_part(old: bool, tmp_path: Path) -> None:
    content = json.loads(json.dumps(PUBLISHED[MULTIMODAL]))
    content["text_config"] |= {"num_hidden_layers": 7, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96}
    content["vision_config"] |= {"num_hidden_layers": 1}
    config = transformers.AutoConfig.for_model(**content)
    with torch.device("meta"):
        model = transformers.Gemma3ForConditionalGeneration(config)
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if key != "lm_head.weight"}
    folder = write_sparse_checkpoint(tmp_path, content, old_names(shapes) if old else shapes, 2)
    loaded, ours = load_model(folder, dtype="auto", device=torch.device("cpu"), max_model_len=16)
    assert ours.layer_windows == (1024,) * 5 + (None, 1024)
    assert loaded.groups.windows == (1024,) * 6 + (None,)
    assert ours.eos_token_ids == (1, 106)


def test_a_text_model_with_a_vision_tower_loads_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shapes = {**stored_shapes("Qwen2.5-0.5B"), "vision_tower.patch.weight": (2, 2)}
    folder = write_sparse_checkpoint(tmp_path, PUBLISHED["Qwen2.5-0.5B"], shapes, 1)
    _, config = load_model(folder, dtype="auto", device=torch.device("cpu"), max_model_len=16)
    assert config.architecture == "Qwen2ForCausalLM"
    assert "does not use are left out (1): vision_tower.patch.weight" in caplog.text
