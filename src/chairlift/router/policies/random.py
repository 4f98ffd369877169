"""RandomPicker: takes a random replica by weight."""

from collections.abc import Sequence
from random import Random

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest


class RandomPicker:
    """Chooses each replica with a probability in proportion to its weight."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        """Return a random candidate."""
        return self._rng.choices(candidates, [candidate.weight for candidate in candidates])[0]
