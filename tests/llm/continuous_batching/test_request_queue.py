"""RequestQueue and the token ids that a request may have."""

import queue
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from chairlift.llm.continuous_batching.request_queue import RequestQueue, WaitingRequest, plain_ids


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


@pytest.mark.parametrize(
    "ids", [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), torch.tensor([[1, 2]]), [[1, 2]]]
)
def test_ids_may_be_lists_arrays_and_tensors(ids: Any) -> None:
    assert plain_ids(ids) == [1, 2]


@pytest.mark.parametrize("ids", [["a"], [1.5], [True], [None], "ab", [[1], [2]], torch.tensor([1.0])])
def test_what_is_no_token_id_is_a_type_error(ids: Any) -> None:
    with pytest.raises(TypeError, match="token ids"):
        plain_ids(ids)
