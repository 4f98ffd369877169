"""arrival_times, with_arrival_times: the times at which an open loop sends its requests."""

import math
from collections.abc import Iterable, Iterator
from random import Random

from chairlift.bench.server.api_requests import PreparedRequest
from chairlift.bench.server.loadgen import EVEN


def arrival_times(rate: float, kind: str, seed: str) -> Iterator[float]:
    """Yield due times of a Poisson process or at even intervals; the same seed gives the same times."""
    rng, at = Random(f"arrivals {seed}"), 0.0
    while True:
        at += 1 / rate if kind == EVEN else -math.log1p(-rng.random()) / rate
        yield at


def with_arrival_times(
    requests: Iterator[PreparedRequest], times: Iterable[float], seconds: float, count: int | None
) -> Iterator[PreparedRequest]:
    """Yield at most `count` requests with these arrival times, up to `seconds`.

    A request is taken from the iterator only if it is sent. There must be at least as many requests as times.
    """
    for number, at in enumerate(times):
        if at >= seconds or number == count:
            return
        prepared = next(requests)
        yield PreparedRequest(at, prepared.request, prepared.requested_tokens)
