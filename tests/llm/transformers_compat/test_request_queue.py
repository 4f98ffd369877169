"""RequestQueue and the token ids that a request may have."""

import queue
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from chairlift.llm.transformers_compat.request_queue import RequestQueue, WaitingRequest, plain_ids, plain_prompts
from support_shares import for_each


def waiting(name: str) -> WaitingRequest:
    return WaitingRequest(name, [1], None, False, False, None, None, 0, {}, 0)


def test_requests_leave_in_order() -> None:
    requests = RequestQueue(2)
    assert requests.empty() and not requests.full()
    for name in ("a", "b"):
        requests.put(waiting(name))
    assert requests.full() and requests.qsize() == len(requests) == 2 and "a" in requests
    removed = requests.remove("a")
    assert removed is not None and removed.request_id == "a" and requests.remove("a") is None
    assert [each.request_id for each in requests.take_all()] == ["b"] and requests.empty()


def test_waiting_for_room_ends_at_the_deadline_or_when_there_is_room() -> None:
    requests, changed = RequestQueue(1), threading.Condition()
    with changed:
        with pytest.raises(queue.Full, match="1 requests wait, the limit max_queue_size is 1"):
            requests.wait_for_room(changed, time.monotonic() + 0.01, lambda: 1)
        counts = [0, 1]

        def make_room() -> None:
            with changed:
                changed.notify_all()

        threading.Timer(0.01, make_room).start()
        requests.wait_for_room(changed, time.monotonic() + 20, counts.pop)
        RequestQueue(0).wait_for_room(changed, time.monotonic(), lambda: 10**6)


@for_each("ids", [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), torch.tensor([[1, 2]]), [[1, 2]]])
def test_ids_may_be_lists_arrays_and_tensors(ids: Any) -> None:
    assert plain_ids(ids) == [1, 2]


TOKENIZE = "; a manager has no tokenizer, so pass tokenizer(text).input_ids"


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
