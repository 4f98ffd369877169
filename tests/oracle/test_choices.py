"""Several choices of one request: the same tokens with every engine option; the first equals that of n=1."""

import pytest

from chairlift import LLM, SamplingParams
from support_oracle import oracle, own_prompt

ASKED = SamplingParams(n=4, temperature=1.1, seed=17, max_tokens=24, ignore_eos=True)
PROMPTS = [list(own_prompt(number, length)) for number, length in enumerate((1, 16, 17, 45))]


@pytest.fixture(scope="module", params=("llama", "gemma3"))
def folder(request: pytest.FixtureRequest) -> str:
    return str(oracle(request.param, 20 if request.param == "gemma3" else None).folder)


def tokens(folder: str, params: SamplingParams = ASKED, **options: object) -> list[list[list[int]]]:
    with LLM(folder, dtype="float64", **{"num_blocks": 600, **options}) as llm:  # type: ignore[arg-type]
        results = llm.generate(PROMPTS, params, use_tqdm=False)
        assert llm.check_integrity() == []
    return [[choice.token_ids for choice in result.outputs] for result in results]


@pytest.mark.full
def test_choices_are_the_same_with_every_engine_option(folder: str) -> None:
    plain = tokens(folder)
    assert all(len({tuple(choice) for choice in choices}) == 4 for choices in plain)
    for options in (
        {"max_chunk_tokens": 5}, {"overlap": True}, {"enable_prefix_caching": False}, {"num_blocks": 36},
        {"max_running_requests": 2}, {"block_size": 1, "num_blocks": 900}, {"attention_backend": "reference"},
        {"num_blocks": 40, "enable_prefix_caching": False, "overlap": True},
    ):  # fmt: skip
        assert tokens(folder, **options) == plain, options


@pytest.mark.share(1)
def test_the_first_is_that_of_one_alone(folder: str) -> None:
    from dataclasses import replace

    assert [choices[:1] for choices in tokens(folder)] == tokens(folder, replace(ASKED, n=1))


@pytest.mark.share(1)
def test_of_many_drawn_those_with_the_highest_mean_logprob_come_back(folder: str) -> None:
    from dataclasses import replace

    with LLM(folder, dtype="float64", num_blocks=600) as llm:
        all_choices = llm.generate(PROMPTS, replace(ASKED, logprobs=0), use_tqdm=False)
        best = llm.generate(PROMPTS, replace(ASKED, n=2, best_of=4), use_tqdm=False)
    for every, kept in zip(all_choices, best, strict=True):
        ranked = sorted(
            every.outputs, key=lambda choice: -sum(entry.logprob for entry in choice.token_logprobs or []) / 24
        )
        assert [choice.token_ids for choice in kept.outputs] == [choice.token_ids for choice in ranked[:2]]
        assert kept.usage.completion_tokens == 4 * 24
