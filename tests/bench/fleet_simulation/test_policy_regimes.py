"""The three regimes of routing: what the default policy gains over round robin, and what it costs without prefixes."""

from dataclasses import replace

import pytest

from chairlift.bench.fleet_simulation.fleet_result import FleetResult
from chairlift.bench.fleet_simulation.load.conversations import (
    MANY_SESSIONS,
    SATURATED,
    SHARED,
    UNSHARED,
    ConversationLoad,
)
from chairlift.bench.fleet_simulation.routing_policy_comparison import CACHING_MACHINE, simulate_conversations
from chairlift.bench.report.percentiles import percentile


def measure(load: ConversationLoad, policy: str, num_replicas: int = 8, seed: int = 0) -> FleetResult:
    return simulate_conversations(load, policy, num_replicas, CACHING_MACHINE, seed)


def mean_ttft(result: FleetResult) -> float:
    return sum(result.ttft_seconds) / len(result.ttft_seconds)


def p99_ttft(result: FleetResult) -> float:
    return percentile(sorted(result.ttft_seconds), 99)


@pytest.mark.full
def test_every_request_is_answered_and_a_seed_replays_the_run() -> None:
    load = replace(SHARED, sessions=12)
    first, second = measure(load, "prefix", 3), measure(load, "prefix", 3)
    assert first.num_requests == sum(first.requests_by_replica.values()) == 12 * load.turns
    assert first == second != measure(load, "prefix", 3, seed=1)


@pytest.mark.full
def test_shared_prefixes_are_hit_more_often_and_answered_sooner_than_by_round_robin() -> None:
    load = replace(SHARED, sessions=120)
    prefix, round_robin = measure(load, "prefix"), measure(load, "round_robin")
    assert prefix.hit_rate >= 1.6 * round_robin.hit_rate
    assert mean_ttft(prefix) <= 0.6 * mean_ttft(round_robin)


@pytest.mark.full
def test_prefixes_of_many_sessions_which_no_cache_holds_alone_are_hit_three_times_as_often() -> None:
    load = replace(MANY_SESSIONS, sessions=240)
    prefix, round_robin = measure(load, "prefix"), measure(load, "round_robin")
    assert prefix.hit_rate >= 3 * round_robin.hit_rate
    assert mean_ttft(prefix) <= 0.6 * mean_ttft(round_robin)


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_prompts_that_share_nothing_wait_no_longer_than_under_round_robin(seed: int) -> None:
    load = replace(UNSHARED, sessions=450)
    prefix, round_robin = measure(load, "prefix", seed=seed), measure(load, "round_robin", seed=seed)
    assert mean_ttft(prefix) <= 1.05 * mean_ttft(round_robin)


@pytest.mark.full
def test_near_saturation_the_hits_keep_the_queues_short() -> None:
    load = replace(SATURATED, sessions=160)
    prefix, round_robin = measure(load, "prefix"), measure(load, "round_robin")
    assert mean_ttft(prefix) <= 0.6 * mean_ttft(round_robin)
    assert p99_ttft(prefix) <= p99_ttft(round_robin)
