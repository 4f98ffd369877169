"""AdapterFilter and LoraPicker: sends a request with a LoRA adapter where the adapter is loaded."""

from collections.abc import Sequence

from chairlift.router.policies.base import Picker
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest


class AdapterFilter:
    """Keeps the replicas that have the request's adapter loaded; all of them if none has it or none is named."""

    def filter(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates with the adapter, or all."""
        if not request.adapter:
            return candidates
        return [candidate for candidate in candidates if request.adapter in candidate.adapters] or candidates


class LoraPicker:
    """Chooses by load where the adapter is loaded; otherwise one replica an adapter, which then loads it.

    Without that rule every replica would load, and evict, every adapter.
    """

    def __init__(self, by_load: Picker, by_adapter: Picker) -> None:
        self._by_load, self._by_adapter = by_load, by_adapter

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        """Return a candidate; the AdapterFilter has run before."""
        is_loaded = not request.adapter or request.adapter in candidates[0].adapters
        picker = self._by_load if is_loaded else self._by_adapter
        return picker.choose(request, candidates, scores, now)
