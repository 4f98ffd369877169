"""read_completion: fields that only completions have."""

from typing import Any

from chairlift.core.sampling_params import MAX_TOKENS
from chairlift.protocol.request_fields import MAX_PROMPTS
from support_request_bodies import completion
from support_shares import for_each

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def test_scores_of_a_completion_are_of_the_prompt_too_where_it_is_echoed() -> None:
    for body, logprobs, prompt_logprobs in (
        ({}, None, None),
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 5}, 5, None),
        ({"logprobs": 5, "echo": True}, 5, 5),
        ({"logprobs": 0, "echo": True, "max_tokens": 0}, 0, 0),
        ({"echo": True}, None, None),
    ):
        params = completion(**body).params
        assert (params.logprobs, params.prompt_logprobs) == (logprobs, prompt_logprobs)


def test_nothing_may_be_generated_where_the_prompt_is_echoed() -> None:
    params = completion(max_tokens=0, echo=True).params
    assert (params.max_tokens, params.echo) == (0, True)


def test_the_best_of_several_are_asked_for() -> None:
    params = completion(n=2, best_of=5).params
    assert (params.n, params.best_of) == (2, 5)


@for_each(
    ("prompt", "prompts"),
    [
        ("Hello.", ("Hello.",)),
        ("", ("",)),
        ([1, 0, MAX_TOKENS], ((1, 0, MAX_TOKENS),)),
        (["a", "b"], ("a", "b")),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a"] * MAX_PROMPTS, ("a",) * MAX_PROMPTS),
    ],
)
def test_prompts_are_texts_or_ids_or_lists_of_them(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts == prompts
