"""use_long_factors: short factors up to the original length, long ones for every sequence of a longer engine."""

from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift import LLM, SamplingParams
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.model.config.select_model_config import read_config
from chairlift.model.transformers.long_rope import use_long_factors
from support_bridged_models import bridged_model, greedy, save_bridged

ORIGINAL = 40
"""Tokens up to which the short factors apply."""

SHORT, LONG = [1.0, 1.2, 1.5, 2.0, 1.1, 1.3, 1.7, 1.9], [2.0, 3.0, 5.0, 9.0, 2.5, 4.0, 6.0, 8.0]
OUTPUT = 8


BOTH = pytest.mark.parametrize("model_impl", ["transformers", "native"])


def fields(short: list[float] = SHORT, long: list[float] = LONG) -> dict[str, Any]:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": short, "long_factor": long, "factor": 4.0,
            "original_max_position_embeddings": ORIGINAL}  # fmt: skip
    return {"rope_parameters": rope, "max_position_embeddings": 160, "original_max_position_embeddings": ORIGINAL,
            "sliding_window": None}  # fmt: skip


def prompt(length: int) -> list[int]:
    return [(7 * i + length) % 300 + 3 for i in range(length)]


def generated(folder: Path, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)
    with LLM(folder, dtype="float64", num_blocks=100, max_chunk_tokens=7, **options) as llm:
        made = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in made]


@BOTH
def test_up_to_the_original_length_tokens_are_those_of_generate(model_impl: str, tmp_path: Path) -> None:
    folder, model = save_bridged("phi3", tmp_path, **fields()), bridged_model("phi3", **fields())
    prompts = [prompt(5), prompt(ORIGINAL - OUTPUT)]
    made = generated(folder, prompts, model_impl=model_impl)
    assert made == [greedy(model, each, OUTPUT) for each in prompts]


@pytest.mark.full
@BOTH
def test_beyond_it_every_sequence_has_the_long_factors(model_impl: str, tmp_path: Path) -> None:
    folder = save_bridged("phi3", tmp_path, **fields())
    model, always_long = bridged_model("phi3", **fields()), bridged_model("phi3", **fields(short=LONG))
    short, long = prompt(20), prompt(ORIGINAL + 30)
    expected = [greedy(always_long, short, OUTPUT), greedy(model, long, OUTPUT)]
    assert greedy(model, short, OUTPUT) != expected[0], "the factors make no difference here"
    made = generated(folder, [short, long], max_model_len=ORIGINAL + 60, model_impl=model_impl)
    assert made == expected


@BOTH
def test_the_default_length_is_the_original_one(model_impl: str, tmp_path: Path) -> None:
    folder = save_bridged("phi3", tmp_path, **fields())
    assert read_config(folder, model_impl).context_length() == ORIGINAL
    with (
        LLM(folder, dtype="float64", num_blocks=100, model_impl=model_impl) as llm,
        pytest.raises(InvalidRequest, match=f"limit is {ORIGINAL}"),
    ):
        llm.generate([prompt(ORIGINAL + 1)], use_tqdm=False)
    with pytest.raises(ConfigError, match="max_model_len is 161, the model's limit is 160"):
        LLM(folder, num_blocks=100, max_model_len=161, model_impl=model_impl)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_rotation_is_that_of_a_pass_that_reaches_the_position(by_name: bool) -> None:
    model = bridged_model("phi3", **fields())
    rotary, positions, values = model.model.rotary_emb, torch.tensor([[0, 7, 3]]), torch.zeros(1, dtype=torch.float64)
    expected = [part[:, :3] for part in rotary(values, torch.tensor([[0, 7, 3, ORIGINAL]]))]
    short = rotary(values, positions)
    assert use_long_factors(model, ORIGINAL + 1) == 1
    rotary = model.model.rotary_emb
    made = rotary(values, position_ids=positions) if by_name else rotary(values, positions)
    assert all(torch.equal(*pair) for pair in zip(made, expected, strict=True))
    assert not torch.equal(made[1], short[1])


def test_other_rotations_do_not_change() -> None:
    assert use_long_factors(bridged_model("olmo2"), 100) == 0


@pytest.mark.full
def test_long_rope_of_some_layers_ends_at_the_original_length_for_all(tmp_path: Path) -> None:
    rope = fields()["rope_parameters"]
    nested = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    changes: dict[str, Any] = {"rope_parameters": nested, "max_position_embeddings": 160}
    folder, model = save_bridged("olmo3", tmp_path, **changes), bridged_model("olmo3", **changes)
    prompts = [prompt(5), prompt(ORIGINAL - OUTPUT)]
    assert generated(folder, prompts) == [greedy(model, each, OUTPUT) for each in prompts]
    assert read_config(folder).context_length() == ORIGINAL
    long = prompt(ORIGINAL + 30)
    assert generated(folder, [long, prompts[0]], max_model_len=160)[0] == greedy(model, long, OUTPUT)
