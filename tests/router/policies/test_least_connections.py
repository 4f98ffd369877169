"""LoadScorer, BestScorePicker: the least loaded by weight is chosen, and equal ones in shares by weight."""

from random import Random

import pytest

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.least_connections import BestScorePicker, LoadScorer
from chairlift.router.policies.registry import make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from support_policies import candidates, pick_many, run_open_requests


@pytest.mark.parametrize(
    ("open_requests", "weights", "scores"),
    [
        ([0, 0], [1, 1], [1.0, 1.0]),
        ([0, 1, 3], [1, 1, 1], [1.0, 0.5, 0.25]),
        ([4, 9], [1, 1], [1.0, 0.5]),
        ([4, 9], [1, 9], [0.4, 1.0]),
        ([7], [1], [1.0]),
    ],
)
def test_the_least_loaded_replica_scores_1(open_requests: list[int], weights: list[float], scores: list[float]) -> None:
    given = [
        Candidate(replica_id=str(index), open_requests=count, weight=weight)
        for index, (count, weight) in enumerate(zip(open_requests, weights, strict=True))
    ]
    assert LoadScorer().score(RoutingRequest(), given) == scores


def test_the_best_score_is_chosen_and_equal_ones_by_weight() -> None:
    picker, given = BestScorePicker(Random(0)), candidates({"a": 1, "b": 1, "c": 3})
    assert picker.choose(RoutingRequest(), given, [0.2, 0.9, 0.1], 0.0).replica_id == "b"
    chosen = [picker.choose(RoutingRequest(), given, [0.9, 0.2, 0.9], 0.0).replica_id for _ in range(4000)]
    assert set(chosen) == {"a", "c"}
    assert chosen.count("c") / 4000 == pytest.approx(0.75, abs=0.03)


def test_an_idle_pool_shares_by_weight() -> None:
    counts = pick_many("least_connections", candidates({"a": 1, "b": 3}), 10_000)
    assert counts["b"] / 10_000 == pytest.approx(0.75, abs=0.01)


def test_open_requests_stay_in_proportion_to_the_weights() -> None:
    open_requests = run_open_requests(make_policy("least_connections", 0), {"a": 1, "b": 2, "c": 5}, 800)
    assert open_requests == {"a": 100, "b": 200, "c": 500}
