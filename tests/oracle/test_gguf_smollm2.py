"""A real trained model from its GGUF file alone: SmolLM2-135M-Instruct in Q4_1, against what transformers answered."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift import LLM, SamplingParams
from chairlift.model.config.gguf_folder import gguf_folder
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.loading.model_building import load_model
from chairlift.model.runner.model_loading import load
from support_batches import teacher_forced_logits
from support_gguf import smollm2_file
from support_native import need_native

REFERENCE: dict[str, Any] = json.loads(Path(__file__).with_name("data").joinpath("smollm2.json").read_text("utf-8"))
IDS = REFERENCE["perplexity_ids"]


def perplexity(log_probabilities: Tensor) -> float:
    """Return the perplexity of the text, whose rows [T - 1, V] predict its tokens but the first."""
    targets = torch.tensor(IDS[1:])[:, None]
    return math.exp(-float(log_probabilities.gather(1, targets).double().mean()))


@pytest.fixture(scope="module")
def expected() -> Tensor:
    """Return log probabilities [T - 1, V] of the text by torch in float32."""
    model, _ = load_model(gguf_folder(smollm2_file()), dtype="float32", device=torch.device("cpu"), max_model_len=512)
    return teacher_forced_logits(model, [IDS], torch.float32, max_chunk=512)[0][:-1].log_softmax(-1)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(smollm2_file(), dtype="float32", kernels="torch", num_blocks=100) as made:
        yield made


def test_perplexity_in_float32_is_that_of_transformers(expected: Tensor) -> None:
    assert perplexity(expected) == pytest.approx(REFERENCE["perplexity"], abs=1e-3)


def test_the_startup_report_names_the_file_and_its_types(llm: LLM) -> None:
    assert llm.startup_report["model"] == f"{smollm2_file()} (LlamaForCausalLM)"
    assert llm.startup_report["stored weights"] == "Q4_1 79%, Q8_0 21%, F32 <1%"


def test_greedy_tokens_in_float32_are_those_of_transformers(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    made = llm.generate([chat["prompt_ids"] for chat in REFERENCE["chats"]], params, use_tqdm=False)
    assert [list(each.outputs[0].token_ids) for each in made] == [chat["greedy_32"] for chat in REFERENCE["chats"]]


def test_a_chat_has_the_prompt_of_the_template_and_stops_at_the_end_of_its_turn(llm: LLM) -> None:
    chats = [chat for chat in REFERENCE["chats"] if chat["end_of_turn_at"] is not None]
    messages = [[{"role": "user", "content": chat["prompt"]}] for chat in chats]
    made = llm.chat(messages, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)
    for chat, found in zip(chats, made, strict=True):
        assert list(found.prompt_token_ids) == chat["prompt_ids"], "one <|im_start|>, and no BOS before it"
        assert (found.outputs[0].text, found.outputs[0].finish_reason) == (chat["text"], "stop")


@pytest.mark.parametrize(
    ("quantization", "dtype", "divergence"),
    [("none", "float32", 1e-6), ("none", "bfloat16", 1e-3), ("auto", "float32", 3e-3), ("auto", "bfloat16", 3e-3)],
)
def test_native_kernels_are_near_float32(quantization: str, dtype: str, divergence: float, expected: Tensor) -> None:
    need_native()
    folder = str(gguf_folder(smollm2_file()))
    loaded = load(RunnerConfig(model=folder, dtype=dtype, kernels="native", device="cpu", quantization=quantization))
    assert loaded.attention is not None
    assert (loaded.kept is not None) == (quantization == "auto")
    cache = torch.float32 if dtype == "float32" else torch.bfloat16
    rows = teacher_forced_logits(loaded.model, [IDS], cache, max_chunk=256, backend=loaded.attention())[0][:-1]
    found = rows.float().log_softmax(-1)
    assert perplexity(found) < 29.6
    assert float((expected.exp() * (expected - found)).sum(-1).mean()) < divergence
