"""Candidate: a replica that may get a request, as the router sees it now."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica that may get the request, as the router sees it now.

    Attributes:
        replica_id: the replica's URL.
        incarnation: changes when the replica's process restarts; "" if unknown.
        weight: share of the requests, slow start included; above 0.
        open_requests: requests that this router has open there, counted when they are picked.
        pending_prefill_tokens: prompt tokens, without those cached there, of the requests that this router has open
            there and that have no first token yet, counted when they are picked.
        waiting_tokens: prompt tokens that wait there, from its last load report.
        running_requests: requests that run there, of all routers, from its last load report.
        expected_wait_seconds: expected wait of a new request there, from its last load report.
        prefill_tokens_per_second: measured speed of prompt processing there; 0 if unknown.
        adapters: LoRA adapters that are loaded there.
    """

    replica_id: str
    incarnation: str = ""
    weight: float = 1.0
    open_requests: int = 0
    pending_prefill_tokens: int = 0
    waiting_tokens: int = 0
    running_requests: int = 0
    expected_wait_seconds: float = 0.0
    prefill_tokens_per_second: float = 0.0
    adapters: frozenset[str] = frozenset()

    @property
    def load(self) -> float:
        """Open requests by weight; those of other routers count, too, as of the last load report."""
        return max(self.open_requests, self.running_requests) / self.weight


class CandidateSequence(Sequence[Candidate]):
    """Candidates of which a policy needs only a few: they are built when it looks at them."""

    @property
    @abstractmethod
    def has_equal_weights(self) -> bool:
        """Whether all weights are known to be equal, without a look at each."""


def have_equal_weights(candidates: Sequence[Candidate]) -> bool:
    """Return whether all candidates have one weight; a CandidateSequence that knows it is not iterated over."""
    if isinstance(candidates, CandidateSequence) and candidates.has_equal_weights:
        return True
    weights = [candidate.weight for candidate in candidates]
    return min(weights) == max(weights)
