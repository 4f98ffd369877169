"""Step scenarios: guarantees of the step time target and the paged KV cache, in the simulator with fixed seeds."""

from typing import Any

import pytest

from chairlift.bench.simulation.sim_step_model import SMALL_CPU
from policy_scenarios.latency_and_memory_scenarios import (
    BUDGETS,
    ITL_CASES,
    itl_scenario,
    one_run,
    paged_against_preallocated,
    small_pool,
)
from policy_scenarios.scenario_loads import LARGE_GPU, at_once
from support_shares import FULL


def in_full(name: str) -> Any:
    """Make a parameter that only `make test-all` takes."""
    return pytest.param(name, marks=pytest.mark.full)


@pytest.mark.full
@pytest.mark.parametrize("name", ["small_cpu", in_full("large_gpu")])
def test_a_target_keeps_the_step_time_and_most_of_the_best_throughput(name: str) -> None:
    numbers = itl_scenario(ITL_CASES[name])
    assert numbers["best_fixed_budget"] > 0 and numbers["best_fixed_p99_over_target"] <= 1.2
    assert numbers["p99_over_target"] <= 1.2
    assert numbers["share_of_best"] >= 0.8


@pytest.mark.full
def test_without_a_target_steps_are_late() -> None:
    """The bound can be broken: the load alone does not keep it."""
    case = ITL_CASES["small_cpu"]
    workload = at_once(3 * case.max_running, case.prompts, case.outputs, 0)
    assert one_run(case, workload)[1] > 2
    assert one_run(case, workload, budget=BUDGETS[0])[1] < 1.2, "there is a budget that keeps it"


@pytest.mark.full
@pytest.mark.parametrize("load", ["broadtail", in_full("growing")])
def test_a_third_of_the_pool_keeps_most_of_the_throughput(load: str) -> None:
    numbers = small_pool(SMALL_CPU, load)
    assert numbers["blocks"] == numbers["wanted_blocks"] // 3
    assert numbers["ratio"] >= 0.6
    assert numbers["small_mean_running"] < 0.6 * numbers["large_mean_running"], "the pool is what bounds it"


@pytest.mark.full
@pytest.mark.parametrize("load", ["broadtail", in_full("growing")])
def test_a_small_pool_costs_running_sequences_and_nothing_else(load: str) -> None:
    """Steps cost nearly the same for few and for many sequences, so fewer running sequences are slower."""
    numbers = small_pool(LARGE_GPU, load)
    assert numbers["ratio_at_equal_running"] >= 0.9
    assert numbers["computed_again"] <= 0.35


def test_a_paged_cache_holds_at_least_five_times_as_many_requests_as_a_preallocated_one() -> None:
    numbers = paged_against_preallocated(1024, requests=400)
    assert numbers["preallocated_peak"] == 16
    assert numbers["peak_ratio"] >= 5 and numbers["mean_ratio"] >= 5
    if FULL:
        assert paged_against_preallocated(2048, requests=300)["mean_ratio"] > numbers["mean_ratio"]
