"""WeightedPicker: nginx's order, exact shares, and replicas that change between two picks."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.policies.weighted import WeightedPicker
from support_policies import candidates, pick_many
from support_shares import for_each

REQUEST = RoutingRequest()


def order(picker: WeightedPicker, given: list[Candidate], count: int) -> str:
    return "".join(picker.choose(REQUEST, given, [0.0] * len(given), 0.0).replica_id for _ in range(count))


@for_each(
    ("weights", "expected"),
    [
        ({"a": 5, "b": 1, "c": 1}, "aabacaa"),  # the example of nginx's own description of the algorithm
        ({"a": 1, "b": 1, "c": 1}, "abc"),
        ({"a": 1, "b": 3}, "babb"),
        ({"a": 2, "b": 1}, "aba"),
        ({"a": 4, "b": 3, "c": 2}, "abcabacba"),
        ({"a": 1}, "a"),
    ],
)
def test_turns_are_spread_as_nginx_spreads_them_and_repeat(weights: dict[str, float], expected: str) -> None:
    assert order(WeightedPicker(), candidates(weights), 3 * len(expected)) == 3 * expected


@given(lists(floats(0.05, 1000), min_size=1, max_size=12))
def test_no_replica_is_ever_more_than_a_turn_or_so_from_its_share(weights: list[float]) -> None:
    given_ones = candidates({str(index): weight for index, weight in enumerate(weights)})
    picker, counts = WeightedPicker(), Counter[str]()
    for turn in range(1, 200):
        counts[picker.choose(REQUEST, given_ones, [], 0.0).replica_id] += 1
        for each in given_ones:
            assert abs(counts[each.replica_id] - turn * each.weight / sum(weights)) < len(weights)


def test_weights_hold_within_one_percent_over_10000_picks() -> None:
    weights = {"a": 1.0, "b": 2.5, "c": 0.1, "d": 7.0}
    counts = pick_many("weighted", candidates(weights), 10_000)
    for name, weight in weights.items():
        assert counts[name] / 10_000 == pytest.approx(weight / 10.6, abs=0.01)


def test_a_large_weight_that_becomes_small_leaves_no_debt() -> None:
    """With absolute credits, b would wait for 1,000 turns after its only one."""
    picker = WeightedPicker()
    before = order(picker, candidates({"a": 1000, "b": 1}), 501)
    assert before.count("b") == 1
    assert order(picker, candidates({"a": 1, "b": 1}), 10).count("b") >= 4


def test_a_weight_that_changes_at_every_pick_gets_its_share() -> None:
    picker, count = WeightedPicker(), 0
    for step in range(1000):
        weight = (step + 1) / 1000  # a slow start
        chosen = picker.choose(REQUEST, candidates({"a": 1.0, "b": weight}), [], 0.0)
        count += chosen.replica_id == "b"
    assert count == pytest.approx(sum(w / (1 + w) for w in (n / 1000 for n in range(1, 1001))), abs=1)


def test_a_replica_that_a_retry_leaves_out_keeps_its_turn() -> None:
    picker, all_of_them = WeightedPicker(), candidates({"a": 1, "b": 1, "c": 1})
    assert order(picker, all_of_them, 1) == "a"
    assert order(picker, all_of_them[2:], 1) == "c"
    assert order(picker, all_of_them, 1) == "b"


def test_a_replica_that_restarts_begins_without_credit_or_debt() -> None:
    picker, (a, b) = WeightedPicker(), candidates({"a": 1, "b": 1})
    assert order(picker, [a, b], 1) == "a"
    assert order(picker, [replace(a, incarnation="2"), b], 1) == "b"
    assert order(picker, [replace(a, incarnation="3"), b], 1) == "a"


def test_replicas_that_are_gone_are_forgotten() -> None:
    picker = WeightedPicker()
    for generation in range(1000):
        picker.choose(REQUEST, [Candidate(replica_id=f"{generation}-{index}") for index in range(3)], [], 0.0)
    assert len(picker._credits) <= 3 + 2 * 3 + 16
