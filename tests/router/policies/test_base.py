"""AssignedReplica: the assigned replica is chosen; where it is gone the other policy decides."""

from collections.abc import Sequence

import pytest

from chairlift.router.policies.base import AssignedReplica
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest
from support_policies import candidates


class LastPolicy:
    """Takes the last candidate, and keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[RoutingRequest, str, float]] = []

    def pick(self, request: RoutingRequest, given: Sequence[Candidate], now: float) -> Candidate:
        self.calls.append((request, "".join(each.replica_id for each in given), now))
        return given[-1]


@pytest.mark.parametrize("assigned", ["a", "b", "c"])
def test_an_assigned_replica_is_chosen_whatever_the_other_policy_says(assigned: str) -> None:
    other = LastPolicy()
    request = RoutingRequest(session_key="s", assigned_replica_id=assigned)
    given = candidates({"a": 1.0, "b": 0.1, "c": 1.0})
    assert AssignedReplica(other).pick(request, given, 0.0).replica_id == assigned
    assert not other.calls


@pytest.mark.parametrize("assigned", ["d", ""], ids=["gone", "none"])
def test_without_its_replica_a_session_goes_where_the_other_policy_says(assigned: str) -> None:
    other = LastPolicy()
    request = RoutingRequest(session_key="s", assigned_replica_id=assigned)
    assert AssignedReplica(other).pick(request, candidates(dict.fromkeys("abc", 1.0)), 7.0).replica_id == "c"
    assert other.calls == [(request, "abc", 7.0)]
