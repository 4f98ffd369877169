"""RequestQueue and the token ids that a request may have."""

import queue
import threading
import time

import pytest

from chairlift.llm.transformers_compat.request_queue import RequestQueue, WaitingRequest


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
