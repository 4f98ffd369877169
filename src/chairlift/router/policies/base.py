"""Policy: chooses the replica of a request; no I/O and no clock, so one seed replays a run.

filters ──> scorers, 0 to 1, weighted ──> picker
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chairlift.router.policies.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRequest:
    """What a policy knows about one request.

    Attributes:
        request_id: the HTTP request's id.
        client_address: IP address of the client.
        assigned_replica_id: replica that the session table names for the session; "" for none.
        session_key: value of the session header or cookie, or the body's `user`; "" for none.
        prefix: hashes of the prompt's beginnings, shortest first, as the prefix index keeps them; () if unknown.
        prefix_tokens: estimated number of prompt tokens up to the end of each of these hashes.
        prefix_matches: how many of these hashes each replica has, by its id; replicas without any may be left out.
        prompt_tokens: estimated length of the prompt in tokens.
        adapter: name of the LoRA adapter; "" for none.
    """

    request_id: str = ""
    client_address: str = ""
    assigned_replica_id: str = ""
    session_key: str = ""
    prefix: tuple[bytes, ...] = ()
    prefix_tokens: Sequence[int] = ()
    prefix_matches: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    adapter: str = ""

    def matched_tokens(self, replica_id: str) -> int:
        """Return the estimated number of prompt tokens that the replica has in its prefix cache."""
        num_hashes = min(self.prefix_matches.get(replica_id, 0), len(self.prefix_tokens))
        return self.prefix_tokens[num_hashes - 1] if num_hashes > 0 else 0


class Policy(Protocol):
    """Chooses one of several replicas. May keep state of its own, such as the turn of a round robin."""

    def pick(self, request: RoutingRequest, candidates: Sequence[Candidate], now: float) -> Candidate:
        """Return one of `candidates`, which are at least one, in order of their ids; `now` is monotonic seconds."""
        ...


class Filter(Protocol):
    """Removes the replicas that should not get a request."""

    def filter(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return some of `candidates` in their order, at least one."""
        ...


class Scorer(Protocol):
    """Rates replicas in one respect."""

    def score(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return a number between 0, the worst, and 1, the best, for each candidate in order."""
        ...


class Picker(Protocol):
    """Chooses by the scores, or by a rule of its own that ignores them. May keep state."""

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        """Return one of `candidates`, which are at least one; `scores` has a number for each."""
        ...


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


class AssignedReplica:
    """A policy in front of another one, which chooses for requests without an assigned replica."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def pick(self, request: RoutingRequest, candidates: Sequence[Candidate], now: float) -> Candidate:
        """Return the assigned replica if it is a candidate, else the choice of the other policy."""
        assigned = (each for each in candidates if each.replica_id == request.assigned_replica_id)
        return next(assigned, None) or self._policy.pick(request, candidates, now)
