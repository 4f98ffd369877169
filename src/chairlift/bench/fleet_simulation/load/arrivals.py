"""Arrivals: the times and lengths of many requests; ArrivalSource sends them."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """Requests in the order of their arrival.

    Attributes:
        name: what they are.
        at: seconds after the start.
        prompt_tokens: lengths of the prompts.
        output_tokens: lengths of the outputs.
        seconds: time of the load.
    """

    name: str
    at: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    seconds: float

    def rates(self, window_seconds: float) -> Floats:
        """Return the requests per second in each window."""
        windows = max(1, math.ceil(self.seconds / window_seconds))
        return np.bincount((self.at // window_seconds).astype(np.int64), minlength=windows) / window_seconds


class ArrivalSource:
    """Sends the requests of Arrivals, whatever becomes of them; see RequestSource."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals, self._place = arrivals, 0
        self._next_at = float(arrivals.at[0]) if len(arrivals.at) else math.inf

    @property
    def next_at(self) -> float:
        """Time of the next request."""
        return self._next_at

    def take(self) -> SimRequest:
        """Return the next request."""
        arrivals, place = self._arrivals, self._place
        request = SimRequest(
            place, self._next_at, int(arrivals.prompt_tokens[place]), int(arrivals.output_tokens[place])
        )
        self._place = place = place + 1
        self._next_at = float(arrivals.at[place]) if place < len(arrivals.at) else math.inf
        return request

    def record_end(self, request: SimRequest, now: float) -> None:
        """Do nothing: no request waits for another."""
