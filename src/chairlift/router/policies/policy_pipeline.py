"""PolicyPipeline: a policy made of filters, weighted scorers and a picker.

filters ──> scorers, 0 to 1, weighted ──> picker
"""

from collections.abc import Sequence

from chairlift.router.policies.base import Filter, Picker, Scorer
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest


class PolicyPipeline:
    """A policy made of filters, weighted scorers and a picker."""

    def __init__(
        self, picker: Picker, *, filters: Sequence[Filter] = (), scorers: Sequence[tuple[Scorer, float]] = ()
    ) -> None:
        self._picker, self._filters, self._scorers = picker, tuple(filters), tuple(scorers)

    def pick(self, request: RoutingRequest, candidates: Sequence[Candidate], now: float) -> Candidate:
        """Return the picker's choice among the candidates that all filters keep."""
        for each in self._filters:
            candidates = each.filter(request, candidates)
        return self._picker.choose(request, candidates, self._scores(request, candidates), now)

    def _scores(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[float]:
        sums = [0.0] * len(candidates)
        for scorer, weight in self._scorers:
            scores = scorer.score(request, candidates)
            sums = [total + weight * score for total, score in zip(sums, scores, strict=True)]
        return sums
