"""RoPE "longrope": short factors up to the original length, and the long ones for all sequences beyond it."""

from pathlib import Path

import pytest

from chairlift import LLM, SamplingParams
from chairlift.core.errors import ConfigError
from support_bridged_models import bridged_model, greedy, save_bridged

ORIGINAL, LONGEST = 48, 128
ROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
FIELDS = {
    "rope_parameters": ROPE, "max_position_embeddings": LONGEST, "original_max_position_embeddings": ORIGINAL,
    "sliding_window": None,
}  # fmt: skip
SHORT, LONG = ([(7 * i) % 290 + 3 for i in range(length)] for length in (20, 60))


@pytest.mark.parametrize(("max_model_len", "prompt"), [(None, SHORT), (LONGEST, LONG)])
def test_tokens_equal_generate_with_the_factors_of_the_length(
    max_model_len: int | None, prompt: list[int], tmp_path: Path
) -> None:
    folder, model = save_bridged("phi3", tmp_path, **FIELDS), bridged_model("phi3", **FIELDS)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(folder, dtype="float64", num_blocks=200, max_chunk_tokens=7, max_model_len=max_model_len) as llm:
        alone = llm.generate([prompt], params, use_tqdm=False)
        beside = llm.generate([SHORT[:5], prompt], params, use_tqdm=False)
    expected = greedy(model, prompt, 12)
    assert alone[0].outputs[0].token_ids == beside[1].outputs[0].token_ids == expected


def test_the_original_length_is_the_default_and_the_longest_the_limit(tmp_path: Path) -> None:
    folder = save_bridged("phi3", tmp_path, **FIELDS)
    with LLM(folder, num_blocks=50) as llm:
        assert llm.startup_report["max_model_len"].startswith(f"{ORIGINAL} (")
    with pytest.raises(ConfigError, match=f"the model's limit is {LONGEST}"):
        LLM(folder, num_blocks=50, max_model_len=LONGEST + 1)
