"""LoadScorer and BestScorePicker: the replica with the fewest open requests by weight."""

from collections.abc import Sequence
from random import Random

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest


class LoadScorer:
    """Rates the least loaded replica 1, and others by how many times its load they have."""

    def score(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return (least load + 1) / (load + 1) of each candidate."""
        loads = [candidate.load for candidate in candidates]
        least = min(loads)
        return [(least + 1.0) / (load + 1.0) for load in loads]


class BestScorePicker:
    """Chooses the best score; among equal ones a random replica by weight."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        """Return the candidate with the best score."""
        best = max(scores)
        equal = [candidate for candidate, score in zip(candidates, scores, strict=True) if score == best]
        return self._rng.choices(equal, [candidate.weight for candidate in equal])[0]
