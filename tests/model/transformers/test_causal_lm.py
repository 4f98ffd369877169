"""TransformersCausalLM: logits are those of the model's own head, with its scales, caps and biases."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from chairlift import LLM, SamplingParams
from chairlift.model.config.layer_groups import AttentionShape
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.sampling.lm_head_output import LogitsRequest
from chairlift.model.transformers.base_model_runner import base_states
from chairlift.model.transformers.causal_lm import TransformersCausalLM, base_of
from chairlift.model.transformers.model_loading_and_layer_measurement import load_module
from support_batches import teacher_forced_logits
from support_bridged_models import bridged_model, model_of
from support_models import tiny_hf_model

SEQUENCES = [[(7 * i + 3 * j) % 300 + 3 for i in range(length)] for j, length in enumerate((1, 29, 47))]


def prepared(model: Any) -> Any:
    return load_module(model, RunnerConfig()).model


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "phi", "granite", "cohere2", "opt", "mixtral", "falcon"])
def test_logits_of_states_are_those_of_the_whole_model(kind: str) -> None:
    model = bridged_model(kind, dtype=torch.float64)
    made: Any = load_module(model, RunnerConfig()).model
    ids = torch.arange(3, 9)
    with torch.inference_mode():
        expected = model(input_ids=ids[None], use_cache=False).logits[0]
        states = base_states(base_of(model), ids, torch.arange(6), use_cache=False)
    assert torch.allclose(made.logits(states), expected, rtol=1e-9, atol=1e-9)
    output = made.head(states, LogitsRequest(np.array([True] + 5 * [False])))
    assert output.argmax_ids.tolist() == expected.argmax(-1).tolist() and output.logits.shape == (1, 304)
    assert (made.vocab_size, made.dtype) == (304, torch.float64)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["gemma2", "granite", "cohere2", "gpt_oss", "opt", "deepseek_v3", "falcon", "bloom"])
def test_logits_in_chunks_and_batches_are_those_of_transformers(kind: str) -> None:
    model = bridged_model(kind)
    made = teacher_forced_logits(prepared(model), SEQUENCES, torch.float64, block_size=4, max_chunk=9)
    with torch.inference_mode():
        for tokens, logits in zip(SEQUENCES, made, strict=True):
            expected = model(torch.tensor([tokens]), use_cache=False).logits[0]
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)  # transformers has parts in float32


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("gemma2", {"final_logit_softcapping": 3.0}), ("granite", {"logits_scaling": 5.0}),
        ("cohere2", {"logit_scale": 0.3}), ("opt", {"word_embed_proj_dim": 32}), ("gpt2", {}),
        ("gptj", {}),
    ],
)  # fmt: skip
def test_the_head_computes_what_the_models_own_head_computes(kind: str, fields: dict[str, Any]) -> None:
    model = bridged_model(kind, **fields)
    causal_lm = prepared(model)
    output: Any = model.get_output_embeddings()
    hidden = torch.randn(3, output.weight.shape[1], dtype=torch.float64)
    expected = output(hidden)
    if kind == "gemma2":
        expected = 3.0 * torch.tanh(expected / 3.0)
    expected = expected / 5.0 if kind == "granite" else expected * 0.3 if kind == "cohere2" else expected
    torch.testing.assert_close(causal_lm.logits(hidden), expected)
    logits = causal_lm.head(hidden, LogitsRequest(np.ones(3, np.bool_))).logits
    torch.testing.assert_close(logits, expected)


@pytest.mark.full
def test_a_head_with_layers_before_its_matrix_reads_the_states(tmp_path: Path) -> None:
    config = transformers.RemBertConfig(
        vocab_size=304, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        is_decoder=True, input_embedding_size=32, output_embedding_size=80, max_position_embeddings=128,
    )  # fmt: skip
    model = model_of(config, scale=0.5)
    made = prepared(model)
    ids = torch.arange(3, 9)
    with torch.inference_mode():
        states = base_states(base_of(model), ids, torch.arange(6), use_cache=False)
        assert states.shape == (6, 64) and model.get_output_embeddings().in_features == 80
        torch.testing.assert_close(made.logits(states), model(input_ids=ids[None], use_cache=False).logits[0])
    model.float().save_pretrained(tmp_path)
    for dtype in ("float32", "bfloat16"):
        with LLM(tmp_path, dtype=dtype, num_blocks=20) as llm:
            (output,) = llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 2


def test_a_weight_that_changes_in_place_is_seen_by_the_next_step() -> None:
    model = bridged_model("gemma2")
    causal_lm = prepared(model)
    before = teacher_forced_logits(causal_lm, SEQUENCES[1:2], torch.float64)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[::2].mul_(3)
        expected = model(torch.tensor(SEQUENCES[1:2]), use_cache=False).logits[0]
    (after,) = teacher_forced_logits(causal_lm, SEQUENCES[1:2], torch.float64)
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-4)
    assert (after - before[0]).abs().max() > 0.1


def test_sizes_are_those_of_the_model() -> None:
    causal_lm = prepared(bridged_model("qwen3_moe", head_dim=32))
    assert isinstance(causal_lm, TransformersCausalLM)
    assert (causal_lm.vocab_size, causal_lm.groups.caches[0].shape) == (304, AttentionShape(2, 32))
    assert causal_lm.dtype == torch.float64 and causal_lm.padded_size(5) == 5


def test_a_head_of_more_rows_than_the_vocabulary_gives_its_logits() -> None:
    model = bridged_model("phi")
    model.resize_token_embeddings(320)
    assert prepared(model).vocab_size == 320


def test_the_base_is_found_where_its_name_is_not_the_usual_one() -> None:
    model = tiny_hf_model("llama")
    assert base_of(model) is model.model

    class Renamed(nn.Module):
        base_model_prefix = "model"

        def __init__(self) -> None:
            super().__init__()
            self.lm_head = nn.Linear(2, 2)
            self.decoder = model.model

    assert base_of(Renamed()) is model.model
