"""plain_ids, plain_prompts: ids as lists, arrays or tensors; else a TypeError that says what to pass."""

from typing import Any

import numpy as np
import pytest
import torch

from chairlift.llm.transformers_compat.prompt_token_ids import plain_ids, plain_prompts
from support_shares import for_each

TOKENIZE = "; a manager has no tokenizer, so pass tokenizer(text).input_ids"


@for_each("ids", [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), torch.tensor([[1, 2]]), [[1, 2]]])
def test_ids_may_be_lists_arrays_and_tensors(ids: Any) -> None:
    assert plain_ids(ids) == [1, 2]


@for_each(
    ("ids", "message"),
    [
        (["a"], f"input_ids must be token ids, got the text 'a'{TOKENIZE}"),
        ("hello", f"input_ids must be token ids, got the text 'hello'{TOKENIZE}"),
        (["hello"], f"input_ids must be token ids, got the text 'hello'{TOKENIZE}"),
        ([1.5], "input_ids must be token ids, which are integers, got float"),
        (torch.tensor([1.0]), "input_ids must be token ids, which are integers, got float"),
        ([True], "input_ids must be token ids, which are integers, got bool"),
        ([None], "input_ids must be token ids, which are integers, got NoneType"),
        ([1, [2]], "input_ids must be token ids, which are integers, got list"),
        (7, "input_ids must be a list of token ids, got int"),
        ({"input_ids": [1]}, 'input_ids must be token ids, got dict; pass its "input_ids"'),
        *(
            (ids, "input_ids must be the token ids of one prompt, got 2 prompts; pass them to add_requests() or "
             "generate_batch()")
            for ids in ([[1], [2, 3]], torch.ones(2, 5, dtype=torch.int64), np.ones((2, 3), np.int64), ([1], (2,)))
        ),
    ],
)  # fmt: skip
def test_what_is_no_prompt_is_a_type_error_that_says_what_to_pass(ids: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        plain_ids(ids)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "prompts", [[[1, 2], (3,)], torch.tensor([[1, 2], [3, 4]]), [torch.tensor([1]), [2]], iter([[1]])]
)
def test_prompts_may_be_lists_and_tensors(prompts: Any) -> None:
    made = plain_prompts(prompts)
    assert made[0][0] == 1 and all(type(token) is int for prompt in made for token in prompt)


@for_each(
    ("prompts", "message"),
    [
        ("hello", f"inputs must be prompts, each a list of token ids, got str{TOKENIZE}"),
        (5, f"inputs must be prompts, each a list of token ids, got int{TOKENIZE}"),
        (["hello"], f"input_ids must be token ids, got the text 'hello'{TOKENIZE}"),
        *(
            (ids, "inputs must be prompts, each a list of token ids, got int; a single prompt is [input_ids]")
            for ids in ([1, 2, 3], torch.tensor([1, 2]))
        ),
        ([np.int64(3)], "inputs must be prompts, each a list of token ids, got int64; a single prompt is [input_ids]"),
    ],
)  # fmt: skip
def test_what_are_no_prompts_is_a_type_error_that_says_what_to_pass(prompts: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        plain_prompts(prompts)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("prompts", "place"), [([[1], [2], "text"], 2), ([[1], ["a"]], 1), ([[1], [True], [2]], 1), ([[1], 5], 1)]
)
def test_the_error_of_one_prompt_among_several_says_which(prompts: Any, place: int) -> None:
    with pytest.raises(TypeError) as caught:
        plain_prompts(prompts)
    assert str(caught.value).startswith(f"inputs[{place}]: ")
