"""Helpers of the tests of routing policies: candidates by weight, many picks, open requests that pile up."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from chairlift.router.policies.base import Policy
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.registry import make_policy
from chairlift.router.policies.routing_request import RoutingRequest


def candidates(weights: Mapping[str, float]) -> list[Candidate]:
    """Return idle candidates, in order of their ids."""
    return [Candidate(replica_id=name, weight=weight) for name, weight in sorted(weights.items())]


def numbered_request(number: int) -> RoutingRequest:
    """Return a request of its own session, client and id."""
    return RoutingRequest(request_id=f"r{number}", session_key=f"s{number}", client_address=f"10.0.0.{number}")


def pick_many(name: str, given: Sequence[Candidate], count: int, seed: int = 0) -> Counter[str]:
    """Return how often a policy picks each of these candidates, whose load stays as it is."""
    policy = make_policy(name, seed)
    return Counter(policy.pick(numbered_request(number), given, 0.0).replica_id for number in range(count))


def run_open_requests(
    policy: Policy,
    weights: Mapping[str, float],
    count: int,
    request_of: Callable[[int], RoutingRequest] = numbered_request,
) -> dict[str, int]:
    """Return the open requests of each replica after `count` picks of which none ends."""
    given = {each.replica_id: each for each in candidates(weights)}
    for number in range(count):
        chosen = policy.pick(request_of(number), list(given.values()), float(number))
        given[chosen.replica_id] = replace(chosen, open_requests=chosen.open_requests + 1)
    return {name: each.open_requests for name, each in given.items()}
