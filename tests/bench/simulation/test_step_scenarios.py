"""What steering and the paged cache promise, held in the simulator with fixed seeds."""

import pytest

from chairlift.bench.simulation.scenario_loads import LARGE_GPU, SMALL_CPU, at_once
from chairlift.bench.simulation.step_scenarios import (
    BUDGETS,
    STATIONS,
    itl_scenario,
    one_run,
    paged_against_preallocated,
    small_pool,
)


@pytest.mark.parametrize("name", list(STATIONS))
def test_a_target_keeps_the_step_time_and_most_of_the_best_throughput(name: str) -> None:
    seen = itl_scenario(STATIONS[name])
    assert seen["best_fixed_budget"] > 0 and seen["best_fixed_p99_over_target"] <= 1.2
    assert seen["p99_over_target"] <= 1.2
    assert seen["share_of_best"] >= 0.8


def test_without_a_target_steps_are_late() -> None:
    """So the bound is one that can be broken: the load alone does not keep it."""
    station = STATIONS["small_cpu"]
    workload = at_once(3 * station.seats, station.prompts, station.outputs, 0)
    assert one_run(station, workload)[1] > 2
    assert one_run(station, workload, budget=BUDGETS[0])[1] < 1.2, "there is a budget that keeps it"


@pytest.mark.parametrize("load", ["broadtail", "growing"])
def test_a_third_of_the_pool_keeps_most_of_the_throughput(load: str) -> None:
    seen = small_pool(SMALL_CPU, load)
    assert seen["blocks"] == seen["wanted_blocks"] // 3
    assert seen["ratio"] >= 0.6
    assert seen["small_mean_running"] < 0.6 * seen["large_mean_running"], "the pool is what bounds it"


@pytest.mark.parametrize("load", ["broadtail", "growing"])
def test_a_small_pool_costs_riders_and_nothing_else(load: str) -> None:
    """Where steps cost nearly the same for few and for many, fewer riders are slower: as slow as so many seats."""
    seen = small_pool(LARGE_GPU, load)
    assert seen["of_as_many_seats"] >= 0.9
    assert seen["computed_again"] <= 0.35


def test_pages_hold_at_least_five_times_as_many_requests_as_seats_of_the_maximum_length() -> None:
    seen = paged_against_preallocated(1024, requests=1000)
    assert seen["preallocated_peak"] == 16
    assert seen["peak_ratio"] >= 5 and seen["mean_ratio"] >= 5
    assert paged_against_preallocated(2048, requests=300)["mean_ratio"] > seen["mean_ratio"]
