"""Logprobs of the prompt equal those of transformers' logits: whole, in chunks, and after a prefix hit."""

import pytest
import torch

from chairlift import LLM, SamplingParams
from chairlift.core.engine_output import TokenLogprob
from support_oracle import Oracle, oracle, own_prompt
from support_shares import each_value

ARCHITECTURES = ("llama", "mistral", "qwen3", "gemma3")


def expected(reference: Oracle, prompt: list[int]) -> torch.Tensor:
    """Return [len(prompt) - 1, V]: of each token but the first, given those before it."""
    with torch.inference_mode():
        return reference.model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)


def check(logprobs: list[TokenLogprob | None] | None, right: torch.Tensor, prompt: list[int], top: int) -> None:
    assert logprobs is not None and logprobs[0] is None and len(logprobs) == len(prompt)
    for at, entry in enumerate(logprobs[1:]):
        assert entry is not None and entry.token_id == prompt[at + 1]
        assert abs(entry.logprob - float(right[at, prompt[at + 1]])) < 1e-6
        values = right[at].sort(descending=True).values[:top]
        assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-6)


@pytest.mark.share(1)
@pytest.mark.parametrize(("chunk", "architecture"), each_value([None, 1, 7, 16], ARCHITECTURES))
def test_they_are_those_of_the_whole_prompt(architecture: str, chunk: int | None) -> None:
    reference = oracle(architecture, 20 if architecture in {"mistral", "gemma3"} else None)
    prompts = [list(own_prompt(number, length)) for number, length in enumerate((1, 2, 33, 64))]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=3)
    with LLM(str(reference.folder), dtype="float64", num_blocks=300, max_chunk_tokens=chunk) as llm:
        llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)  # now they are all in the cache
        results = llm.generate(prompts, params, use_tqdm=False)
    for prompt, result in zip(prompts, results, strict=True):
        assert result.usage.cached_tokens == 0
        check(result.prompt_token_logprobs, expected(reference, prompt), prompt, 3)


def test_max_tokens_may_be_zero_with_echo() -> None:
    reference = oracle("llama", None)
    prompt = list(own_prompt(5, 20))
    params = SamplingParams(max_tokens=0, echo=True, prompt_logprobs=0)
    with LLM(str(reference.folder), dtype="float64", num_blocks=100) as llm:
        (result,) = llm.generate([prompt], params, use_tqdm=False)
    check(result.prompt_token_logprobs, expected(reference, prompt), prompt, 0)
    assert result.outputs[0].token_ids == [] and result.usage.completion_tokens == 0


def test_the_head_goes_over_a_prompt_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from chairlift.model.sampling import prompt_logprobs

    monkeypatch.setattr(prompt_logprobs, "CHUNK_ELEMENTS", 1000)  # three rows of this vocabulary
    reference = oracle("llama", None)
    prompt = list(own_prompt(6, 50))
    with LLM(str(reference.folder), dtype="float64", num_blocks=100) as llm:
        (result,) = llm.generate([prompt], SamplingParams(max_tokens=1, prompt_logprobs=1), use_tqdm=False)
    check(result.prompt_token_logprobs, expected(reference, prompt), prompt, 1)
