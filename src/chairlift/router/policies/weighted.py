"""WeightedPicker: takes replicas in turn by weight, each one's turns spread evenly (smooth weighted round robin).

Before each pick every replica gains its share of the weights; the one with the most is chosen and pays 1. This is
nginx's algorithm with credits as shares of 1 instead of weights, so that a credit stays valid when weights change.
"""

from collections.abc import Sequence

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest

ROUNDING = 1e-9
"""Credits that differ by less are equal; their sums have rounding errors of about 1e-12."""


class WeightedPicker:
    """Smooth weighted round robin. Between equal credits the first candidate is chosen.

    A replica that returns after a restart begins without credit or debt.
    """

    def __init__(self, *, equal_weights: bool = False) -> None:
        self._equal_weights = equal_weights
        self._credits: dict[tuple[str, str], float] = {}

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        """Return the candidate whose turn it is."""
        weights = [1.0 if self._equal_weights else candidate.weight for candidate in candidates]
        total, old = sum(weights), self._credits
        chosen, most = candidates[0], float("-inf")
        for candidate, weight in zip(candidates, weights, strict=True):
            key = (candidate.replica_id, candidate.incarnation)
            old[key] = credit = old.get(key, 0.0) + weight / total
            if credit > most + ROUNDING:
                chosen, most = candidate, credit
        old[chosen.replica_id, chosen.incarnation] -= 1.0
        if len(old) > 2 * len(candidates) + 16:  # a retry leaves out few; the rest are gone
            present = {(candidate.replica_id, candidate.incarnation) for candidate in candidates}
            self._credits = {key: credit for key, credit in old.items() if key in present}
        return chosen
