"""PowerOfTwoPicker: draws two replicas, or a few, at random by weight and takes the least loaded one."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from random import Random
from typing import Any

from chairlift.router.policies.candidate import Candidate, have_equal_weights
from chairlift.router.policies.routing_request import RoutingRequest


class PowerOfTwoPicker:
    """The less loaded of two different random replicas; the first drawn if their loads are equal.

    Stays close to the least loaded replica without the rush to it that stale load reports cause.
    `load_of` returns what is compared; `num_choices` is how many replicas are drawn.
    """

    def __init__(
        self, rng: Random, load_of: Callable[[Candidate], Any] = attrgetter("load"), num_choices: int = 2
    ) -> None:
        self._rng, self._load_of, self._num_choices = rng, load_of, num_choices

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        """Return the least loaded of the candidates drawn."""
        return min((candidates[index] for index in self._draw(candidates)), key=self._load_of)

    def _draw(self, candidates: Sequence[Candidate]) -> list[int]:
        """Return different random indices, first the one that a single draw by weight gives."""
        count = min(self._num_choices, len(candidates))
        if have_equal_weights(candidates):
            return self._rng.sample(range(len(candidates)), count)
        weights = [candidate.weight for candidate in candidates]
        indices = []
        for _ in range(count):
            indices += self._rng.choices(range(len(weights)), weights)
            weights[indices[-1]] = 0.0
        return indices
