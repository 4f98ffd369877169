"""The three regimes of routing: what the default policy gains over round robin, and what it costs without prefixes."""

from dataclasses import replace

import pytest

from fleet_simulation.conversations import MANY_SESSIONS, SATURATED, SHARED, UNSHARED, Load
from fleet_simulation.simulation import FleetOptions, FleetResult, simulate_fleet


def measure(load: Load, policy: str, num_replicas: int = 8, seed: int = 0) -> FleetResult:
    return simulate_fleet(load, FleetOptions(policy=policy, num_replicas=num_replicas, seed=seed))


def test_every_request_is_answered_and_a_seed_replays_the_run() -> None:
    load = replace(SHARED, sessions=12)
    first, second = measure(load, "prefix", 3), measure(load, "prefix", 3)
    assert len(first.ttft_seconds) == first.num_requests.total() == 12 * load.turns
    assert first == second != measure(load, "prefix", 3, seed=1)


def test_shared_prefixes_are_hit_more_often_and_answered_sooner_than_by_round_robin() -> None:
    load = replace(SHARED, sessions=120)
    prefix, round_robin = measure(load, "prefix"), measure(load, "round_robin")
    assert prefix.hit_rate >= 1.6 * round_robin.hit_rate
    assert prefix.mean_ttft <= 0.6 * round_robin.mean_ttft


def test_prefixes_of_many_sessions_which_no_cache_holds_alone_are_hit_three_times_as_often() -> None:
    load = replace(MANY_SESSIONS, sessions=240)
    prefix, round_robin = measure(load, "prefix"), measure(load, "round_robin")
    assert prefix.hit_rate >= 3 * round_robin.hit_rate
    assert prefix.mean_ttft <= 0.6 * round_robin.mean_ttft


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_prompts_that_share_nothing_wait_no_longer_than_under_round_robin(seed: int) -> None:
    load = replace(UNSHARED, sessions=450)
    assert measure(load, "prefix", seed=seed).mean_ttft <= 1.05 * measure(load, "round_robin", seed=seed).mean_ttft


def test_near_saturation_the_hits_keep_the_queues_short() -> None:
    load = replace(SATURATED, sessions=160)
    prefix, round_robin = measure(load, "prefix"), measure(load, "round_robin")
    assert prefix.mean_ttft <= 0.6 * round_robin.mean_ttft
    assert prefix.p99_ttft <= round_robin.p99_ttft
