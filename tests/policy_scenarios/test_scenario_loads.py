"""Scenario loads: depend only on the seed and have the requested rates and sizes."""

from random import Random

import pytest

from chairlift.bench.simulation.sim_step_model import SMALL_CPU
from policy_scenarios.scenario_loads import LARGE_GPU, Stream, at_once, interarrival_seconds, together

STREAMS = [Stream(40.0, (8, 16), (2, 4), tenant="a"), Stream(4.0, (32, 32), (9, 9), tenant="b", priority=3)]


def test_streams_arrive_together_in_order_at_their_own_rates() -> None:
    items = together(STREAMS, 100.0, seed=0).items
    assert [item.at for item in items] == sorted(item.at for item in items) and items[-1].at < 100
    mine = [item for item in items if item.tenant == "a"]
    others = [item for item in items if item.tenant == "b"]
    assert len(mine) == pytest.approx(4000, rel=0.1) and len(others) == pytest.approx(400, rel=0.2)
    assert {len(item.prompt_token_ids) for item in mine} == set(range(8, 17))
    assert {(len(item.prompt_token_ids), item.output_tokens, item.priority) for item in others} == {(32, 9, 3)}


def test_the_seed_decides_a_load_and_a_stream_does_not_hang_on_the_others() -> None:
    assert together(STREAMS, 5.0, 1) == together(STREAMS, 5.0, 1) != together(STREAMS, 5.0, 2)
    alone = together(STREAMS[:1], 5.0, 1).items
    assert alone == tuple(item for item in together(STREAMS, 5.0, 1).items if item.tenant == "a")
    assert at_once(5, (4, 8), (1, 9), 1) == at_once(5, (4, 8), (1, 9), 1) != at_once(5, (4, 8), (1, 9), 2)


def test_all_at_once_is_at_the_start() -> None:
    items = at_once(200, (4, 8), (1, 9), 0).items
    assert {item.at for item in items} == {0.0}
    assert {len(item.prompt_token_ids) for item in items} == set(range(4, 9))
    assert {item.output_tokens for item in items} == set(range(1, 10))


def test_gaps_are_those_of_a_poisson_process() -> None:
    rng = Random(0)
    gaps = [interarrival_seconds(rng, 4.0) for _ in range(20_000)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.03)
    assert sum((each - mean) ** 2 for each in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)


def test_the_machines_say_what_they_stand_for() -> None:
    assert SMALL_CPU.origin and LARGE_GPU.origin and SMALL_CPU.noise == LARGE_GPU.noise == 0
