"""make_model: folders of named shapes, with the fields that published files have."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from cpu_bench import random_models
from cpu_bench.random_models import SHAPES, make_model

ARCHITECTURES = {
    "qwen35_08": "Qwen3_5ForCausalLM", "lfm2_350": "Lfm2ForCausalLM", "granite4_350": "GraniteMoeHybridForCausalLM",
    "gemma4_e2b": "Gemma4ForCausalLM", "qwen3_30b_layers": "Qwen3MoeForCausalLM",
}  # fmt: skip


class NoTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shapes_of_2026_are_decoders_of_chairlifts_own(name: str) -> None:
    config_class, shape = SHAPES[name]
    fields = getattr(transformers, config_class)(**shape, tie_word_embeddings=True).to_dict()
    read = parse_decoder_config({**fields, "architectures": [ARCHITECTURES[name]]})
    assert (read.hidden_size, read.num_layers) == (shape["hidden_size"], shape["num_hidden_layers"])


def test_a_folder_has_the_names_of_layers_that_published_files_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ["mamba", "attention"]
    tiny: dict[str, Any] = {
        **SHAPES["granite4_350"][1], "vocab_size": 32, "hidden_size": 32, "shared_intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 4, "mamba_n_heads": 2, "layer_types": kinds,
    }  # fmt: skip
    monkeypatch.setitem(random_models.SHAPES, "tiny", ("GraniteMoeHybridConfig", tiny))
    monkeypatch.setattr(random_models, "_train_tokenizer", NoTokenizer)
    make_model("tiny", tmp_path / "model")
    fields = json.loads((tmp_path / "model/config.json").read_text())
    assert fields["layer_types"] == kinds
    assert parse_decoder_config(fields).num_layers == 2
    assert sorted(path.name for path in tmp_path.glob("model/*.safetensors")) == ["model.safetensors"]
