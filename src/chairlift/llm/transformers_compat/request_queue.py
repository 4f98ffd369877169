"""RequestQueue: the requests of a manager that has not started, with the methods of queue.Queue for its readers."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that no engine has checked yet; see ContinuousBatchingManager.add_request."""

    request_id: str
    input_ids: list[int]
    max_new_tokens: Any
    streaming: bool
    record_timestamps: bool
    eos_token_id: Any
    timeout: float | None
    priority: int
    sampling: dict[str, Any]
    seed: int
    created_time: float = field(default_factory=time.perf_counter)


class RequestQueue:
    """Requests in order of arrival. The manager's lock guards it; readers get numbers of a moment.

    Attributes:
        maxsize: requests that may wait for their first token, in this queue and in the engine; 0 means no limit.
    """

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self._requests: dict[str, WaitingRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def qsize(self) -> int:
        """Return the number of requests."""
        return len(self._requests)

    def empty(self) -> bool:
        """Return whether there is none."""
        return not self._requests

    def full(self) -> bool:
        """Return whether there are `maxsize` of them."""
        return 0 < self.maxsize <= len(self._requests)

    def wait_for_room(self, changed: threading.Condition, deadline: float, count: Callable[[], int]) -> None:
        """Wait until fewer than `maxsize` requests wait, which `changed` tells. Raises queue.Full at the deadline."""
        while 0 < self.maxsize <= count():
            left = deadline - time.monotonic()
            if left <= 0 or not changed.wait(left):
                raise queue.Full(f"{count()} requests wait, the limit max_queue_size is {self.maxsize}")

    def put(self, request: WaitingRequest) -> None:
        """Add a request."""
        self._requests[request.request_id] = request

    def remove(self, request_id: str) -> WaitingRequest | None:
        """Remove a request; return it, None when it is not here."""
        return self._requests.pop(request_id, None)

    def take_all(self) -> list[WaitingRequest]:
        """Remove and return all requests."""
        requests, self._requests = list(self._requests.values()), {}
        return requests
