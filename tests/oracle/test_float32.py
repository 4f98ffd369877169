"""Whole runs in float32 against transformers: equal tokens, but where its two likeliest are within 1e-4.

Weights of float16 are computed with in float32, too.
"""

from functools import cache
from pathlib import Path

import pytest
import torch

from chairlift import LLM, SamplingParams
from chairlift.model.device.dtypes import torch_dtype
from support_models import tiny_hf_model
from support_native import need_native
from support_oracle import ARCHITECTURES, own_prompt

NEAR_TIE = 1e-4
PROMPTS = [list(own_prompt(number, length)) for number, length in enumerate((1, 5, 17, 33, 50, 64))]
OUTPUT = 32


def first_difference(ours: list[int], theirs: list[int]) -> int | None:
    return next((at for at, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), None)


@cache
def continuations(architecture: str, dtype: torch.dtype) -> list[tuple[list[int], tuple[torch.Tensor, ...]]]:
    """Return the tokens that transformers makes of each prompt in float32, and the logits that it chose them from.

    dtype: that of the weights.
    """
    torch.set_num_threads(1)
    model, results = tiny_hf_model(architecture, 1, torch.float32), []
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).float()
    for prompt in PROMPTS:
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=OUTPUT, do_sample=False, eos_token_id=None, pad_token_id=0,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        results.append((made.sequences[0, len(prompt) :].tolist(), made.logits))
    return results


@pytest.mark.share(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "kernels"), [("float32", "auto"), ("float32", "torch"), ("float16", "auto")])
@pytest.mark.parametrize("chunk", [7, None])
def test_float32_tokens_equal_generate_but_at_near_ties(
    architecture: str, dtype: str, kernels: str, chunk: int | None, tmp_path: Path
) -> None:
    need_native()
    weights = torch_dtype(dtype)
    tiny_hf_model(architecture, 1, torch.float32).to(weights).save_pretrained(tmp_path)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)
    with LLM(tmp_path, kernels=kernels, num_blocks=400, max_chunk_tokens=chunk) as llm:
        assert ("native" in llm.startup_report["kernels"]) == (kernels == "auto")
        made = llm.generate(PROMPTS, params, use_tqdm=False)
    same = 0
    for (expected, logits), output in zip(continuations(architecture, weights), made, strict=True):
        at = first_difference(output.outputs[0].token_ids, expected)
        if at is None:
            same += 1
            continue
        best, second = logits[at][0].topk(2).values.tolist()
        assert best - second < NEAR_TIE, f"token {at} differs although the gap is {best - second}"
    assert same >= len(PROMPTS) - 1, "near ties hide what this test should see"
