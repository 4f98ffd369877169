"""AffinityFilter, PrefixScorer, PrefixPicker: the replica that has the prompt cached, unless waiting there costs more.

Affinity to a replica ends when the wait there is longer than elsewhere by more than the prefill it saves, or when its
load is far above that of the alternative. The alternative is the best of NUM_ALTERNATIVES random replicas, by
wait_and_load; it gets every request of which no replica knows the beginning.
"""

from collections.abc import Sequence
from statistics import median

from chairlift.router.policies.base import Picker
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest

COVERING_SHARE = 0.8
"""Share of the prompt from which a replica that has it wins over any score."""

NOMINAL_PREFILL_TOKENS_PER_SECOND = 2000.0
"""Speed of prompt processing while no replica reports one: fast for a CPU, slow for a GPU."""

NUM_ALTERNATIVES = 4
"""Replicas drawn for a prompt that none knows; of two, the TTFT was 1.15 × that of a round robin over eight."""

MAX_LOAD_RATIO = 2.0
MAX_LOAD_EXCESS = 8.0
"""Affinity ends at a load above MAX_LOAD_RATIO × the alternative's + MAX_LOAD_EXCESS open requests by weight."""


class PrefixScorer:
    """Rates a replica by the share of the prompt that it has in its prefix cache."""

    def score(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return cached tokens / prompt tokens of each candidate."""
        total = max(request.prompt_tokens, 1)
        return [min(1.0, request.matched_tokens(candidate.replica_id) / total) for candidate in candidates]


class AffinityFilter:
    """Keeps the replicas that know the beginning of the prompt, without those whose affinity ends, and the alternative.

    A replica stays if its load is not far above the alternative's, and the first token comes no later there.
    """

    def __init__(self, alternative: Picker) -> None:
        self._alternative = alternative

    def filter(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates with affinity and the alternative."""
        other = self._alternative.choose(request, candidates, (), 0.0)
        matches = request.prefix_matches
        if not matches:
            return [other]
        speeds = [each.prefill_tokens_per_second for each in candidates if each.prefill_tokens_per_second > 0]
        speed = median(speeds) if speeds else NOMINAL_PREFILL_TOKENS_PER_SECOND
        max_load = MAX_LOAD_RATIO * other.load + MAX_LOAD_EXCESS
        max_seconds = seconds_to_first_token(request, other, speed)
        return [
            candidate for candidate in candidates
            if candidate is other
            or (matches.get(candidate.replica_id, 0) > 0 and candidate.load <= max_load
                and seconds_to_first_token(request, candidate, speed) <= max_seconds)
        ]  # fmt: skip


class PrefixPicker:
    """Chooses the best score, first among the replicas that cover the prompt."""

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        """Return the candidate with the best score among those that cover the prompt, else among all."""
        least = COVERING_SHARE * request.prompt_tokens

        def rank(index: int) -> tuple[bool, float]:
            return request.matched_tokens(candidates[index].replica_id) >= least, scores[index]

        return candidates[max(range(len(candidates)), key=rank)]


def seconds_to_first_token(request: RoutingRequest, candidate: Candidate, default_speed: float) -> float:
    """Estimate the wait at a replica and the prefill of what it does not have cached.

    The wait is the reported one or, where larger, the prefill of the prompt tokens that wait there.
    Requests that were sent since the report, the open ones that do not run yet, count like this one.
    A replica that reports no speed is assumed to prefill at `default_speed` and to start its requests at once.
    """
    speed = candidate.prefill_tokens_per_second
    prefill = max(0, request.prompt_tokens - request.matched_tokens(candidate.replica_id)) / (speed or default_speed)
    wait = reported_wait_seconds(candidate, default_speed)
    if speed > 0:
        wait = max(wait, max(0, candidate.open_requests - candidate.running_requests) * prefill)
    return wait + prefill


def reported_wait_seconds(candidate: Candidate, default_speed: float) -> float:
    """Return the longer of the reported wait and the prefill of the prompt tokens that were reported to wait."""
    speed = candidate.prefill_tokens_per_second or default_speed
    return max(candidate.expected_wait_seconds, candidate.waiting_tokens / speed)


def wait_and_load(candidate: Candidate) -> tuple[float, float]:
    """Return what decides between replicas that do not know a prompt: the wait, then the load.

    The wait is the reported one or, where larger, the prefill of this router's requests that have no first token yet.
    """
    speed = candidate.prefill_tokens_per_second or NOMINAL_PREFILL_TOKENS_PER_SECOND
    wait = reported_wait_seconds(candidate, NOMINAL_PREFILL_TOKENS_PER_SECOND)
    return max(wait, candidate.pending_prefill_tokens / speed), candidate.load
