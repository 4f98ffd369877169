"""models_page: its architectures are those that the oracle runs, its sentences those of the errors."""

from typing import Any

import pytest
import torch
import transformers

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.transformers.model_loading_and_layer_measurement import load_module
from reference_docs.models_page import AT_LOAD, BY_SEQUENCE, PAGED, REFUSED, models_page, refusal
from support_bridged_models import BRIDGED, model_of

SMALL = {"vocab_size": 304, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertLMHeadModel": ("BertConfig", {name: value for name, value in SMALL.items() if name != "head_dim"}),
    "BigBirdForCausalLM": (
        "BigBirdConfig",
        {name: value for name, value in SMALL.items() if name != "head_dim"} | {"is_decoder": True},
    ),
    "MoshiForCausalLM": (
        "MoshiConfig",
        SMALL | {"ffn_dim": 96, "sliding_window": 512, "max_position_embeddings": 1024},
    ),
    "OpenAIGPTLMHeadModel": ("OpenAIGPTConfig", {"vocab_size": 304, "n_embd": 64, "n_layer": 2, "n_head": 4}),
}
"""Architecture -> class and fields of a small config."""


def architecture(config: str) -> str:
    """Return the name of the decoder of a config class."""
    name: str = transformers.AutoModelForCausalLM._model_mapping[getattr(transformers, config)].__name__
    return name


@pytest.mark.parametrize(("texts", "runs"), [(PAGED, "paged"), (BY_SEQUENCE, "sequence")])
def test_the_architectures_are_those_of_the_oracle(texts: dict[str, str], runs: str) -> None:
    names = sorted(architecture(entry.config) for entry in BRIDGED.values() if entry.runs == runs)
    assert sorted(texts) == [name for name in names if name not in ARCHITECTURES]
    assert list(texts) == sorted(texts)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", AT_LOAD)
def test_the_sentences_of_models_that_are_refused_at_load(name: str) -> None:
    config, fields = CONFIGS[name]
    module = model_of(getattr(transformers, config)(**fields), dtype=torch.float32)
    assert type(module).__name__ == name
    with pytest.raises(UnsupportedArchitecture) as raised:
        load_module(module, RunnerConfig())
    assert raised.value.message == AT_LOAD[name]


def test_every_architecture_and_sentence_is_on_the_page() -> None:
    page = models_page()
    assert all(f"`{name}`" in page for name in (*ARCHITECTURES, *PAGED, *BY_SEQUENCE, *AT_LOAD))
    assert "JambaForCausalLM has state-space layers (attn_layer_period in config.json)" in page
    assert page.count("a state of its own instead of keys and values") == 4
    assert len([line for line in page.splitlines() if line.startswith("| ") and "---" not in line]) == 5 + len(
        (*ARCHITECTURES, *PAGED, *BY_SEQUENCE, *REFUSED, *AT_LOAD)
    )


def test_a_model_that_runs_is_no_row_of_the_refused() -> None:
    with pytest.raises(ValueError, match="is not refused"):
        refusal(SMALL | {"architectures": ["LlamaForCausalLM"]})
