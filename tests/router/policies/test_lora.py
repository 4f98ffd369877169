"""AdapterFilter: in every policy a request goes where its adapter is loaded; without an adapter the load decides."""

from collections import Counter

import pytest

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.lora import AdapterFilter
from chairlift.router.policies.registry import POLICY_NAMES, make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from support_policies import candidates, run_open_requests
from support_shares import for_each

A = Candidate(replica_id="a", adapters=frozenset({"sql", "law"}))
B = Candidate(replica_id="b", adapters=frozenset({"sql"}), open_requests=5)
C = Candidate(replica_id="c")


@pytest.mark.parametrize(
    ("adapter", "kept"), [("", "abc"), ("sql", "ab"), ("law", "a"), ("none has it", "abc"), ("sq", "abc")]
)
def test_replicas_with_the_adapter_are_kept_or_all(adapter: str, kept: str) -> None:
    given = AdapterFilter().filter(RoutingRequest(adapter=adapter), [A, B, C])
    assert "".join(each.replica_id for each in given) == kept


@for_each("name", POLICY_NAMES)
def test_every_policy_sends_a_request_where_its_adapter_is_loaded(name: str) -> None:
    policy = make_policy(name, 0)
    requests = [RoutingRequest(request_id=str(number), adapter="sql") for number in range(60)]
    assert {policy.pick(request, [A, B, C], 0.0).replica_id for request in requests} <= {"a", "b"}


def test_among_the_replicas_that_have_it_the_less_loaded_is_chosen() -> None:
    policy = make_policy("lora", 0)
    assert {policy.pick(RoutingRequest(adapter="sql"), [A, B, C], 0.0).replica_id for _ in range(30)} == {"a"}


def test_an_adapter_that_none_has_is_loaded_at_one_replica_and_others_elsewhere() -> None:
    policy, given = make_policy("lora", 0), candidates(dict.fromkeys("abcdefgh", 1.0))
    homes: dict[str, set[str]] = {}
    for number in range(800):
        request = RoutingRequest(request_id=str(number), adapter=str(number % 40))
        homes.setdefault(request.adapter, set()).add(policy.pick(request, given, 0.0).replica_id)
    assert {len(home) for home in homes.values()} == {1}
    assert len(set().union(*homes.values())) >= 7


def test_without_an_adapter_requests_go_by_load() -> None:
    loads = run_open_requests(make_policy("lora", 0), dict.fromkeys("abcd", 1.0), 400, lambda _: RoutingRequest())
    assert Counter(loads).most_common()[0][1] <= 100 + 5
