"""What is cut after some tokens and handed to another engine goes on as if nothing had happened, token for token."""

import random
from dataclasses import replace
from typing import Any

import pytest

from chairlift import LLM, SamplingParams, StructuredOutput
from chairlift.llm.builtin_models import RANDOM
from chairlift.llm.outputs import RequestOutput
from support_shares import FULL

COUNT = 200 if FULL else 32
OPTIONS: dict[str, Any] = {"dtype": "float64", "num_blocks": 900, "max_running_requests": 24, "max_batch_tokens": 256}
STRUCTURES = (
    StructuredOutput(regex="[a-z]{3,9}( [a-z]{3,9}){2,4}"),
    StructuredOutput(choice=("a lift", "a chairlift", "a chair")),
    StructuredOutput(json_schema={
        "type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"enum": [1, 22, 333]}},
        "required": ["name", "age"], "additionalProperties": False,
    }),
)  # fmt: skip


def random_request(number: int) -> tuple[str, SamplingParams]:
    rng = random.Random(number)
    prompt = "".join(rng.choice("abcdef ghij") for _ in range(rng.randrange(1, 60)))
    chosen: dict[str, Any] = {"seed": rng.getrandbits(60), "max_tokens": rng.randrange(4, 40)}
    kind = number % 8
    if kind in (0, 5):
        chosen["temperature"] = 0.0
    if kind in (1, 5):
        chosen |= {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.8, "min_tokens": 3}
    if kind == 2:
        chosen |= {"stop": ["ab", "ccd", "dd"], "temperature": 1.5, "allowed_token_ids": list(b"abcd")}
    if kind in (3, 6):
        chosen |= {"structured": rng.choice(STRUCTURES), "max_tokens": 120}
    if kind in (4, 6):
        chosen["n"] = 2
    if kind == 7:
        chosen |= {"no_repeat_ngram_size": 2, "bad_words": ["a", "th"], "typical_p": 0.9, "top_k": 40, "logprobs": 1}
    return prompt, SamplingParams(**chosen)


def cut(result: RequestOutput, rng: random.Random) -> list[list[int]]:
    """Take some of each choice's tokens, as if the engine had been lost then."""
    return [choice.token_ids[: rng.randrange(len(choice.token_ids) + 1)] for choice in result.outputs]


@pytest.mark.share(1)
@pytest.mark.parametrize("overlap", [False, True])
def test_the_whole_equals_the_uncut_run(overlap: bool) -> None:
    requests = [random_request(number) for number in range(COUNT)]
    prompts, params = [prompt for prompt, _ in requests], [chosen for _, chosen in requests]
    with LLM(RANDOM, **OPTIONS) as llm:
        whole = llm.generate(prompts, params, use_tqdm=False)
    stopped = sum(isinstance(choice.stop_reason, str) for result in whole for choice in result.outputs)
    assert stopped >= COUNT // 16, "too few end at a stop string"
    rng = random.Random(overlap)
    resume = [cut(result, rng) for result in whole]
    with LLM(RANDOM, **{**OPTIONS, "overlap": overlap, "num_blocks": 400}) as fresh:
        resumed = fresh.generate(prompts, params, resume=resume, use_tqdm=False)
    for before, after in zip(whole, resumed, strict=True):
        assert before.error is None and after.error is None
        assert before.usage.completion_tokens == after.usage.completion_tokens
        for left, right in zip(before.outputs, after.outputs, strict=True):
            num_delivered = len(right.token_ids) - len(right.token_logprobs or [])
            for one, other in zip(
                left.token_logprobs[num_delivered:] if left.token_logprobs else (),
                right.token_logprobs or (),
                strict=True,
            ):
                assert one.token_id == other.token_id and one.logprob == pytest.approx(other.logprob, abs=1e-9)
            assert replace(left, token_logprobs=None) == replace(right, token_logprobs=None)


@pytest.mark.full
def test_it_goes_on_in_an_engine_of_another_process() -> None:
    requests = [random_request(number) for number in range(24 if FULL else 8)]
    prompts, params = [prompt for prompt, _ in requests], [chosen for _, chosen in requests]
    with LLM(RANDOM, **OPTIONS) as llm:
        whole = llm.generate(prompts, params, use_tqdm=False)
    resume = [cut(result, random.Random(5)) for result in whole]
    assert any(map(any, resume))
    with LLM(RANDOM, **OPTIONS, engine_mode="process") as fresh:
        resumed = fresh.generate(prompts, params, resume=resume, use_tqdm=False)
    for before, after in zip(whole, resumed, strict=True):
        assert after.error is None and before.usage.completion_tokens == after.usage.completion_tokens
        expected = [replace(choice, token_logprobs=None) for choice in before.outputs]
        assert expected == [replace(choice, token_logprobs=None) for choice in after.outputs]


def test_tokens_that_no_grammar_of_the_request_allows_are_refused() -> None:
    structured = SamplingParams(structured=StructuredOutput(choice=("yes", "no")), max_tokens=9)
    with LLM(RANDOM, **OPTIONS) as llm:
        (result,) = llm.generate(["a"], structured, resume=[[[120]]], use_tqdm=False)
        (good,) = llm.generate(["a"], structured, resume=[[list(b"ye")]], use_tqdm=False)
    assert result.error is not None and "is not allowed by the grammar" in result.error.message
    assert good.outputs[0].text == "yes"
