"""Scenarios: guarantees of the scheduling policies, in the simulator with fixed seeds; each bound can be broken."""

import pytest

from policy_scenarios.scheduling_scenarios import SCENARIOS, ageing_bound, fair_service, prefix_hits


@pytest.mark.full
def test_two_tenants_at_ten_to_one_get_equal_service_within_a_tenth() -> None:
    numbers = fair_service("fair")
    assert numbers["offered_ratio"] == pytest.approx(0.1, rel=0.15)
    assert numbers["ratio"] == pytest.approx(1.0, rel=0.1)
    assert numbers["backlogged_seconds"] > 45


@pytest.mark.full
def test_weights_of_two_to_one_give_twice_the_service() -> None:
    assert fair_service("fair", {"small": 2.0})["ratio"] == pytest.approx(2.0, rel=0.1)


@pytest.mark.full
def test_without_fairness_service_follows_the_load() -> None:
    assert fair_service("fifo")["ratio"] == pytest.approx(0.1, rel=0.35)


@pytest.mark.full
def test_ageing_starves_no_request_beyond_its_bound() -> None:
    numbers = ageing_bound(5.0)
    assert numbers["broken"] == numbers["unfinished"] == 0
    assert numbers["overtakings"] > 1000 and 0 <= numbers["nearest_seconds"] < 0.5, "the bound is tight, not idle"
    most = max(numbers["longest_wait_of_priority_0"], numbers["longest_wait_of_priority_1"])
    assert numbers["longest_wait_of_priority_4"] < most + 4 * 5.0


@pytest.mark.full
def test_without_ageing_the_bound_is_broken() -> None:
    numbers = ageing_bound(100_000.0, required_ageing=5.0)
    assert numbers["broken"] > 1000
    assert numbers["longest_wait_of_priority_4"] > 2 * numbers["longest_wait_of_priority_0"]


@pytest.mark.full
@pytest.mark.parametrize("hot", [0.0, 0.5, 0.8])
def test_cached_prefixes_first_has_more_hits_and_no_much_longer_wait(hot: float) -> None:
    aware, fifo = (prefix_hits(policy, hot) for policy in ("cache_aware", "fifo"))
    assert aware["hit_rate"] > fifo["hit_rate"]
    assert aware["longest_wait"] <= 1.5 * fifo["longest_wait"]
    assert aware["seconds"] < fifo["seconds"]


@pytest.mark.full
def test_the_seed_decides_a_scenario() -> None:
    assert prefix_hits("fifo") == prefix_hits("fifo") != prefix_hits("fifo", seed=1)


@pytest.mark.full
def test_every_promise_has_its_scenario() -> None:
    assert set(SCENARIOS) == {"fair", "priority", "cache_aware", "target_itl_ms", "small_pool", "paged"}
    for arm, numbers in SCENARIOS["priority"]().items():
        assert arm and all(isinstance(value, float) for value in numbers.values())
