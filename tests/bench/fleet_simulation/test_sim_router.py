"""SimRouter: held requests, prefixes, moves, and candidates that are built only when a policy looks at them."""

import pytest

from chairlift.bench.fleet_simulation.fleet_replica import FleetReplica
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest
from chairlift.bench.fleet_simulation.sim_router import ReadyReplicas, SimRouter
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.registry import POLICY_NAMES, make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.prompt_prefix_and_length import prompt_prefix
from support_shares import for_each

MACHINE = SimReplicaSettings()


def replica(number: int) -> FleetReplica:
    return FleetReplica(f"r{number:05}", MACHINE.make_model(number), 0.0, prefill_speed=1e3, max_running=9)


def test_requests_are_held_until_a_replica_is_ready() -> None:
    router = SimRouter("prefix", 0)
    requests = [SimRequest(n, 0.0, 100, 1) for n in range(3)]
    assert [router.route(each, 0.0) for each in requests] == [None] * 3
    assert router.held_tokens == 300
    only = replica(0)
    assert router.add(only) == requests and router.held == [] and router.held_tokens == 0
    assert router.route(requests[0], 1.0) is only
    router.remove(only)
    assert router.route(requests[1], 1.0) is None and router.ready == []


def test_the_next_turn_goes_to_the_replica_that_has_computed_its_beginning() -> None:
    router = SimRouter("prefix", 0)
    for number in range(5):
        router.add(replica(number))
    prompt = list(range(1000))
    first = SimRequest(0, 0.0, 1000, 200, prefix=prompt_prefix({"prompt": prompt}, model="m"))
    chosen = router.route(first, 0.0)
    assert chosen is not None and first.routed_tokens == 1000
    first.output_token_ids += range(200)
    router.record_answer(chosen, first)
    longer = prompt + list(range(200)) + [5] * 10
    second = SimRequest(1, 9.0, len(longer), 2, prefix=prompt_prefix({"prompt": longer}, model="m"))
    assert router.route(second, 9.0) is chosen and second.routed_tokens < 200


@pytest.mark.parametrize(("policy", "count"), [("prefix", 5), ("session", 0)])
def test_waiting_requests_move_to_a_new_replica_unless_the_policy_keeps_sessions(policy: str, count: int) -> None:
    router = SimRouter(policy, 0)
    old, new = replica(0), replica(1)
    router.add(old)
    requests = [SimRequest(n, 0.0, 1000, 2) for n in range(12)]
    for each in requests:
        router.route(each, 0.0)
    router.add(new)
    waiting = {"r00000": requests}
    assert router.choose_moves({"r00007"}, waiting, 2.0) == [], "one that is gone again"
    moves = router.choose_moves({"r00001"}, waiting, 2.0)
    assert len(moves) == count
    for request, target in moves:
        assert target is new and router.move(request, old, new, 2.0) and request.num_moves == 1
    assert (old.open_requests, new.open_requests) == (12 - count, count)


class CountedReplicas(ReadyReplicas):
    """Counts how many candidates were built."""

    num_built = 0

    def __getitem__(self, index: int) -> Candidate:  # type: ignore[override]
        self.num_built += 1
        return super().__getitem__(index)


@for_each("policy", POLICY_NAMES)
def test_a_policy_picks_from_lazy_candidates_what_it_picks_from_a_list(policy: str) -> None:
    lazy, request = ReadyReplicas(), RoutingRequest(session_key="s", prompt_tokens=9)
    lazy.replicas = [replica(number) for number in range(20)]
    one, other = make_policy(policy, 3), make_policy(policy, 3)
    for number in range(30):
        chosen = one.pick(request, lazy, 0.0)
        assert chosen == other.pick(request, list(lazy), 0.0)
        lazy.replicas[number % 20].open(SimRequest(number, 0.0, 10, 5), 0.0)


@pytest.mark.parametrize("policy", ["prefix", "power_of_two", "lora"])
def test_these_policies_look_at_a_few_of_many_replicas(policy: str) -> None:
    many = CountedReplicas()
    many.replicas = [replica(number) for number in range(500)]
    make_policy(policy, 0).pick(RoutingRequest(prompt_tokens=9), many, 0.0)
    assert 1 <= many.num_built <= 5
