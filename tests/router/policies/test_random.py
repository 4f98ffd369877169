"""RandomPicker: shares by weight, and equal choices from equal seeds."""

from random import Random

import pytest

from chairlift.router.policies.random import RandomPicker
from chairlift.router.policies.routing_request import RoutingRequest
from support_policies import candidates, pick_many


def test_weights_hold_within_one_percent_over_10000_picks() -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 6.5}
    counts = pick_many("random", candidates(weights), 10_000)
    for name, weight in weights.items():
        assert counts[name] / 10_000 == pytest.approx(weight / 10, abs=0.01)


def test_a_seed_replays_a_run() -> None:
    def run(seed: int) -> list[str]:
        picker, given = RandomPicker(Random(seed)), candidates(dict.fromkeys("abcdefgh", 1.0))
        return [picker.choose(RoutingRequest(), given, [], 0.0).replica_id for _ in range(50)]

    assert run(1) == run(1) != run(2)
