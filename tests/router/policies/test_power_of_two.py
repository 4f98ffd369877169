"""PowerOfTwoPicker: the less loaded of two by weight, and the maximum load that this gives."""

from math import log2
from random import Random

import pytest

from chairlift.router.policies.candidate import Candidate, CandidateSequence
from chairlift.router.policies.power_of_two import PowerOfTwoPicker
from chairlift.router.policies.registry import make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from support_policies import candidates, pick_many, run_open_requests
from support_shares import for_each


def test_of_two_the_less_loaded_is_chosen_by_weight() -> None:
    picker = PowerOfTwoPicker(Random(0))
    busy, idle = Candidate(replica_id="a", open_requests=3), Candidate(replica_id="b", open_requests=2)
    large = Candidate(replica_id="c", open_requests=3, weight=2.0)
    assert {picker.choose(RoutingRequest(), [busy, idle], [], 0.0).replica_id for _ in range(50)} == {"b"}
    assert {picker.choose(RoutingRequest(), [idle, large], [], 0.0).replica_id for _ in range(50)} == {"c"}


@for_each("weights", [dict.fromkeys("abcdef", 1.0), dict(zip("abcdef", range(1, 7), strict=True))])
@for_each(("num_choices", "chosen"), [(2, "bcdef"), (4, "def"), (6, "f"), (9, "f")])
def test_the_best_of_several_is_chosen(weights: dict[str, float], num_choices: int, chosen: str) -> None:
    """The loads fall from a to f, so the best of k is one of the last that k draws can reach."""
    picker = PowerOfTwoPicker(Random(0), lambda each: -ord(each.replica_id), num_choices)
    given = candidates(weights)
    assert {picker.choose(RoutingRequest(), given, [], 0.0).replica_id for _ in range(1500)} == set(chosen)


class ManyCandidates(CandidateSequence):
    """Builds candidates when they are looked at, and counts them."""

    def __init__(self, count: int, *, has_equal_weights: bool) -> None:
        self._count, self._has_equal_weights, self.num_built = count, has_equal_weights, 0

    @property
    def has_equal_weights(self) -> bool:
        return self._has_equal_weights

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Candidate:  # type: ignore[override]
        if index >= self._count:
            raise IndexError
        self.num_built += 1
        return Candidate(replica_id=f"{index:05}", open_requests=index * 7919 % 100)


def test_only_the_drawn_ones_of_many_equal_candidates_are_built_and_the_choice_is_that_of_a_list() -> None:
    known, unknown = (ManyCandidates(1000, has_equal_weights=has_equal) for has_equal in (True, False))
    pickers = [PowerOfTwoPicker(Random(5)) for _ in range(3)]
    for _ in range(20):
        chosen = [
            picker.choose(RoutingRequest(), given, [], 0.0)
            for picker, given in zip(pickers, (known, unknown, list(unknown)), strict=True)
        ]
        assert chosen[0] == chosen[1] == chosen[2]
    assert known.num_built == 40 and unknown.num_built > 20_000


def test_one_candidate_is_the_choice() -> None:
    assert PowerOfTwoPicker(Random(0)).choose(RoutingRequest(), candidates({"a": 1}), [], 0.0).replica_id == "a"


@pytest.mark.parametrize("weights", [dict.fromkeys("abcd", 1.0), {"a": 1.0, "b": 2.0, "c": 3.0, "d": 100.0}])
def test_the_most_loaded_replica_is_never_chosen_as_two_are_always_compared(weights: dict[str, float]) -> None:
    picker = PowerOfTwoPicker(Random(0))
    given = [
        Candidate(replica_id=name, weight=weight, open_requests=10_000 if name == "d" else 0)
        for name, weight in weights.items()
    ]
    assert "d" not in {picker.choose(RoutingRequest(), given, [], 0.0).replica_id for _ in range(1000)}


@pytest.mark.share(1)
@pytest.mark.parametrize("seed", range(5))
def test_the_maximum_load_is_within_log_log_n_of_the_mean(seed: int) -> None:
    """Azar, Broder, Karlin and Upfal: m / n + log2 ln n + O(1); one random choice has about sqrt(2 m ln n / n) more."""
    names = dict.fromkeys((f"{index:03}" for index in range(200)), 1.0)
    loads = run_open_requests(make_policy("power_of_two", seed), names, 4000)
    assert max(loads.values()) <= 20 + log2(log2(200)) + 2
    assert max(run_open_requests(make_policy("random", seed), names, 4000).values()) >= 20 + 9


def test_open_requests_follow_weights_that_differ_by_far() -> None:
    loads = run_open_requests(make_policy("power_of_two", 3), {"a": 100, **dict.fromkeys("bcdefghijk", 1)}, 1100)
    assert loads["a"] == pytest.approx(1000, rel=0.1)


def test_an_idle_pool_shares_by_weight() -> None:
    counts = pick_many("power_of_two", candidates({"a": 1, "b": 3, "c": 4}), 10_000)
    assert [counts[name] / 10_000 for name in "abc"] == pytest.approx([0.125, 0.375, 0.5], abs=0.015)
