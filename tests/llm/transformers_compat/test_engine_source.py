"""EngineSource: engines of loaded models and of folders, with the model's own generation_config."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chairlift.core.errors import ConfigError, ModelError
from chairlift.llm.transformers_compat.engine_source import _eos_of, engine_source
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from support_bridged_models import bridged_model
from support_forks import TORCH_MODULES, forked_children
from support_models import save_tiny, tiny_hf_model
from support_ranks import rank_pids


def test_a_module_brings_its_generation_config() -> None:
    model = bridged_model("gpt2", dtype=torch.float32).eval()
    model.generation_config.update(do_sample=True, top_k=7, max_new_tokens=5, eos_token_id=[3, 4])
    source = engine_source(model, None, None, {})
    assert source.settings.sampling["top_k"] == 7 and source.settings.max_new_tokens == 5
    assert source.eos_token_ids == (3, 4) and source.name == "GPT2LMHeadModel"
    other = engine_source(model, {"max_new_tokens": 9}, None, {})
    assert other.settings.max_new_tokens == 9 and other.settings.sampling["temperature"] == 0
    assert other.eos_token_ids == (3, 4)
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = 6
    assert engine_source(model, None, None, {}).eos_token_ids == (6,)
    model.config.eos_token_id = None
    assert engine_source(model, None, None, {}).eos_token_ids == ()


def test_a_folder_brings_its_generation_config(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path)
    config = {"do_sample": True, "temperature": 0.5, "eos_token_id": [2, 5], "max_new_tokens": 3}
    (folder / "generation_config.json").write_text(json.dumps(config))
    source = engine_source(folder, None, None, {"num_blocks": 64})
    assert source.settings.sampling["temperature"] == 0.5 and source.settings.max_new_tokens == 3
    assert source.eos_token_ids == (2, 5)
    client = source.start()
    assert client.info.num_blocks == 64
    client.close()


@pytest.mark.parametrize(
    ("model", "message"),
    [(5, "got an object of int"), (Path("/nowhere/at/all"), "nowhere"), (torch.nn.Linear(2, 2), "Linear")],
)
def test_what_is_no_model_is_named(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        engine_source(model, None, None, {})


def test_impossible_options_are_found_without_an_engine() -> None:
    with pytest.raises(ConfigError, match="max_batch_tokens"):
        engine_source(bridged_model("gpt2", dtype=torch.float32), None, None, {"max_batch_tokens": 0})


def test_a_field_of_the_models_own_configuration_that_is_refused_says_where_it_is(tmp_path: Path) -> None:
    model = bridged_model("gpt2", dtype=torch.float32)
    model.generation_config.suppress_tokens = [1, 2]
    folder = save_tiny("llama", tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": [1, 2]}))
    for source, place in (
        (model, "the generation_config of the model itself"), (folder, "generation_config.json of the model folder"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            engine_source(source, None, None, {})
        assert str(caught.value) == (
            "suppress_tokens=[1, 2] is not supported: use bad_words_ids. It comes from "
            f"{place}: pass a generation_config without it"
        )
        assert engine_source(source, {"bad_words_ids": [[1], [2]]}, None, {}).settings.sampling["bad_words_ids"]


def test_an_error_at_the_start_of_the_engine_has_the_name_that_was_given() -> None:
    model = bridged_model("gpt2", dtype=torch.float32)
    with pytest.raises(ConfigError, match="are left for the KV cache") as caught:
        engine_source(model, None, None, {"max_memory_percent": 1e-9}).start()
    assert caught.value.details["option"] == "max_memory_percent"
    with pytest.raises(ConfigError, match="max_memory must be"):
        engine_source(model, None, None, {"max_memory": 0})


@pytest.fixture
def forked_ranks() -> Iterator[None]:
    with forked_children(TORCH_MODULES):
        yield


@pytest.mark.full
@pytest.mark.usefixtures("forked_ranks")
def test_a_folder_runs_on_two_ranks_and_a_module_does_not(tmp_path: Path) -> None:
    folder, tokens = save_tiny("llama", tmp_path), []
    options = {"dtype": "float64", "device": "cpu", "kernels": "torch", "num_blocks": 64, "eos_token_id": -1}
    for ranks in (1, 2):
        manager = ContinuousBatchingManager(folder, None, tensor_parallel_size=ranks, **options)
        manager.start()
        try:
            manager.add_request([5, 6, 7], max_new_tokens=12)
            output = manager.get_result(timeout=60)
            assert len(rank_pids(os.getpid())) == ranks - 1
            assert output is not None and output.error is None
            tokens.append(output.generated_tokens)
        finally:
            manager.stop(block=True)
    assert rank_pids(os.getpid()) == []
    assert tokens[0] == tokens[1] and len(tokens[0]) == 12
    source = engine_source(tiny_hf_model("llama"), None, None, {"tensor_parallel_size": 2})
    with pytest.raises(
        ConfigError, match="tensor_parallel_size is 2, a loaded model runs on one device; pass its fold"
    ):
        source.start()


@pytest.mark.parametrize(
    ("own", "of_config", "expected"),
    [([None], 6, (6,)), ([3, None], 6, (3,)), (-1, 6, (6,)), ([], [6, None], (6,)), (None, [-1, None], ())],
)  # fmt: skip
def test_nulls_and_negative_ids_name_no_end_of_sequence(own: Any, of_config: Any, expected: tuple[int, ...]) -> None:
    module = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=own), config=SimpleNamespace(eos_token_id=of_config)
    )
    assert _eos_of(module) == expected
