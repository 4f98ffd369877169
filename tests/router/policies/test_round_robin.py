"""round_robin_picker: equal turns in order, whatever the weights, also when replicas join and leave."""

from chairlift.router.policies.round_robin import round_robin_picker
from chairlift.router.policies.routing_request import RoutingRequest
from support_policies import candidates, pick_many


def test_replicas_take_turns_in_order() -> None:
    picker, given = round_robin_picker(), candidates({"a": 1, "b": 9, "c": 0.1})
    assert "".join(picker.choose(RoutingRequest(), given, [], 0.0).replica_id for _ in range(7)) == "abcabca"


def test_a_replica_that_joins_gets_its_turns_and_one_that_leaves_none() -> None:
    picker = round_robin_picker()
    for names in ("ab", "abc", "bc", "abc"):
        given = candidates(dict.fromkeys(names, 1.0))
        chosen = [picker.choose(RoutingRequest(), given, [], 0.0).replica_id for _ in range(6 * len(names))]
        assert all(abs(chosen.count(name) - 6) <= 1 for name in names)


def test_10000_picks_are_equal() -> None:
    counts = pick_many("round_robin", candidates({"a": 1, "b": 5, "c": 3, "d": 1}), 10_000)
    assert set(counts.values()) == {2500}
