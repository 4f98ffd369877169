"""RequestQueue: the requests of a manager that has not started, with the methods of queue.Queue for its readers."""

import operator
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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


_TOKENIZE = "; a manager has no tokenizer, so pass tokenizer(text).input_ids"


def plain_prompts(inputs: Any) -> list[list[int]]:
    """Return the token ids of several prompts. Raises TypeError for what is not a sequence of prompts."""
    prompts = inputs.tolist() if hasattr(inputs, "tolist") else inputs
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise TypeError(f"inputs must be prompts, each a list of token ids, got {type(prompts).__name__}{_TOKENIZE}")
    made = []
    for prompt in prompts:
        if not isinstance(prompt, Iterable) or getattr(prompt, "shape", None) == ():
            raise TypeError(
                f"inputs must be prompts, each a list of token ids, got {type(prompt).__name__}; a single prompt is "
                "[input_ids]"
            )
        made.append(plain_ids(prompt))
    return made


def plain_ids(input_ids: Any) -> list[int]:
    """Return token ids as a list. Raises TypeError for what is not a sequence of integers, or has several prompts."""
    ids = input_ids.tolist() if hasattr(input_ids, "tolist") else input_ids
    if isinstance(ids, str | bytes):
        raise TypeError(f"input_ids must be token ids, got the text {ids!r:.40}{_TOKENIZE}")
    if isinstance(ids, Mapping):
        raise TypeError(f'input_ids must be token ids, got {type(ids).__name__}; pass its "input_ids"')
    if not isinstance(ids, Iterable):
        raise TypeError(f"input_ids must be a list of token ids, got {type(ids).__name__}")
    ids = list(ids)
    if ids and all(isinstance(each, list | tuple) for each in ids):
        if len(ids) > 1:
            raise TypeError(
                f"input_ids must be the token ids of one prompt, got {len(ids)} prompts; pass them to add_requests() "
                "or generate_batch()"
            )
        ids = list(ids[0])  # a batch of one prompt
    return [token if type(token) is int else _plain_id(token) for token in ids]


def _plain_id(token: Any) -> int:
    """Return an integer of numpy or torch as an int. Raises TypeError for anything else."""
    if isinstance(token, str | bytes):
        raise TypeError(f"input_ids must be token ids, got the text {token!r:.40}{_TOKENIZE}")
    if not isinstance(token, bool):
        with suppress(TypeError, ValueError):
            return operator.index(token)
    raise TypeError(f"input_ids must be token ids, which are integers, got {type(token).__name__}")
