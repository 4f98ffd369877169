"""ConsistentHashPicker, HashRing: keys stay, few move when replicas come and go, and no replica is overloaded."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import ceil

import pytest

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.consistent_hash import (
    LOAD_FACTOR,
    MIN_BOUND,
    ConsistentHashPicker,
    HashRing,
    client_address_key,
    session_key,
)
from chairlift.router.policies.registry import make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from support_policies import candidates, run_open_requests

KEYS = [RoutingRequest(session_key=f"session-{number}") for number in range(3000)]


def homes(picker: ConsistentHashPicker, weights: Mapping[str, float]) -> list[str]:
    given = candidates(weights)
    return [picker.choose(request, given, [], 0.0).replica_id for request in KEYS]


def replicas(count: int) -> dict[str, float]:
    return {f"http://10.0.0.{index}:8000": 1.0 for index in range(count)}


@pytest.mark.parametrize(
    ("request_", "address", "session"),
    [
        (RoutingRequest(request_id="r", client_address="1.2.3.4", session_key="s"), "1.2.3.4", "s"),
        (RoutingRequest(request_id="r", client_address="1.2.3.4"), "1.2.3.4", "1.2.3.4"),
        (RoutingRequest(request_id="r", session_key="s"), "r", "s"),
        (RoutingRequest(request_id="r"), "r", "r"),
    ],
)
def test_what_is_hashed(request_: RoutingRequest, address: str, session: str) -> None:
    assert (client_address_key(request_), session_key(request_)) == (address, session)


@pytest.mark.full
def test_a_key_stays_with_its_replica_in_every_router() -> None:
    first, second = ConsistentHashPicker(session_key), ConsistentHashPicker(session_key)
    before = homes(first, replicas(10))
    homes(second, replicas(4))  # a router with another history
    assert homes(first, replicas(10)) == before == homes(second, replicas(10))


@pytest.mark.share(1)
@pytest.mark.parametrize("count", [2, 3, 5, 10, 20, 50, 100])
def test_adding_one_of_n_replicas_moves_at_most_1_2_of_nths_of_the_keys_and_only_to_it(count: int) -> None:
    picker, new = ConsistentHashPicker(session_key), "http://10.0.1.1:8000"
    before, after = homes(picker, replicas(count)), homes(picker, replicas(count) | {new: 1.0})
    moved = [target for source, target in zip(before, after, strict=True) if source != target]
    assert set(moved) == {new}
    assert len(moved) / len(KEYS) <= 1.2 / count
    assert homes(picker, replicas(count)) == before, "its keys return when it leaves"


@pytest.mark.share(2)
@pytest.mark.parametrize("count", [2, 10, 100])
def test_removing_a_replica_moves_only_its_keys_and_spreads_them(count: int) -> None:
    picker, gone = ConsistentHashPicker(session_key), "http://10.0.0.1:8000"
    before = homes(picker, replicas(count))
    after = homes(picker, {name: 1.0 for name in replicas(count) if name != gone})
    assert all(source in (target, gone) for source, target in zip(before, after, strict=True))
    assert len({target for source, target in zip(before, after, strict=True) if source == gone}) >= min(count - 1, 9)


def test_keys_are_spread_evenly() -> None:
    counts = Counter(homes(ConsistentHashPicker(session_key), replicas(10)))
    assert max(counts.values()) <= 1.2 * 300 and min(counts.values()) >= 0.8 * 300


@pytest.mark.parametrize(
    "weights", [{"a": 1.0, "b": 2.0, "c": 5.0}, {"a": 100.0, "b": 200.0, "c": 500.0}, {"a": 0.5, "b": 1.0, "c": 2.5}]
)
def test_keys_follow_weights(weights: dict[str, float]) -> None:
    counts = Counter(homes(ConsistentHashPicker(session_key), weights))
    for name, weight in weights.items():
        assert counts[name] / len(KEYS) == pytest.approx(weight / sum(weights.values()), rel=0.15)


@pytest.mark.full
def test_a_weight_that_grows_draws_keys_only_to_its_replica() -> None:
    picker, weights = ConsistentHashPicker(session_key), replicas(5) | {"new": 0.01}
    before, share = homes(picker, weights), 0.0
    for weight in (0.25, 0.5, 0.75, 1.0):
        after = homes(picker, weights | {"new": weight})
        assert {target for source, target in zip(before, after, strict=True) if source != target} == {"new"}
        assert after.count("new") > share
        before, share = after, after.count("new")


def test_no_replica_exceeds_its_bound_however_few_keys_there_are() -> None:
    """Mirrokni, Thorup and Zadimoghaddam, 2016: at most the load factor times the mean, rounded up."""
    weights = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0}
    loads = run_open_requests(make_policy("session", 0), weights, 1600, lambda _: KEYS[0])
    for name, weight in weights.items():
        assert loads[name] <= ceil(LOAD_FACTOR * 1600 * weight / 8)


def test_a_replica_is_not_overloaded_by_few_requests() -> None:
    home = homes(ConsistentHashPicker(session_key), replicas(10))[0]
    loads = run_open_requests(make_policy("session", 0), replicas(10), MIN_BOUND, lambda _: KEYS[0])
    assert loads[home] == MIN_BOUND


@pytest.mark.full
def test_an_overloaded_replica_loses_its_keys_to_several_others_and_gets_them_back() -> None:
    picker, weights = ConsistentHashPicker(session_key), replicas(10)
    before = homes(picker, weights)
    busy = candidates(weights)
    busy[3] = replace(busy[3], open_requests=50)
    after = [picker.choose(request, busy, [], 0.0).replica_id for request in KEYS]
    moves = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    assert {source for source, _ in moves} == {busy[3].replica_id}
    assert len({target for _, target in moves}) >= 8, "its neighbours share them"
    assert homes(picker, weights) == before


def test_a_retry_takes_the_choice_of_a_pool_without_the_tried_replica_and_builds_no_ring() -> None:
    ring, weights = HashRing(), replicas(20)
    ring.update(candidates(weights))
    others = {name: 1.0 for name in weights if not name.endswith((".3:8000", ".7:8000"))}
    fresh = HashRing()
    fresh.update(candidates(others))
    for key in ("x", "y", "z"):
        ring.update(candidates(others))
        present = {each.replica_id: each for each in candidates(others)}
        assert list(ring.order(key, present))[:5] == list(fresh.order(key, present))[:5]
    assert ring.num_builds == 1


def test_the_ring_is_built_once_while_replicas_and_weights_stay() -> None:
    ring, given = HashRing(), candidates(replicas(50))
    for number in range(100):
        ring.update([replace(each, open_requests=number, incarnation=str(number)) for each in given])
    assert ring.num_builds == 1
    for number in range(1000):  # a slow start of one of them
        ring.update([replace(given[0], weight=(number + 1) / 1000), *given[1:]])
    assert ring.num_builds <= 10


def test_replicas_that_are_gone_leave_the_ring() -> None:
    ring = HashRing()
    for generation in range(200):
        ring.update([Candidate(replica_id=f"{generation}-{index}") for index in range(3)])
    assert len(ring._num_points) <= 3 + 2 * 3 + 16
    assert len(ring._points) == sum(ring._num_points.values())


def test_every_replica_is_in_the_order_of_every_key() -> None:
    ring, given = HashRing(), candidates(replicas(30))
    ring.update(given)
    assert set(ring.order("key", {each.replica_id: each for each in given})) == set(replicas(30))
