"""SimulatedReplica: one server waits as queueing theory says; sizes of trials, and numbers out of range."""

from typing import Any

import pytest

from chairlift.bench.planning.capacity import Targets, find_capacity, num_requests, try_rate
from chairlift.bench.planning.simulated_replica import RequestLoad, SimulatedReplica
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig

LOAD, TARGETS = RequestLoad(input=64, output=16), Targets(ttft=0.2, itl=0.025)


def server(seconds: float) -> SimulatedReplica:
    """Return a replica that serves one request after the other, each in the same time."""
    scheduler = SchedulerConfig(max_running_requests=1)
    return SimulatedReplica(step_model=SimStepModel(step=seconds), scheduler=scheduler, num_blocks=10)


@pytest.mark.full
@pytest.mark.parametrize("utilization", [0.4, 0.7])
def test_one_server_with_a_fixed_service_time_waits_as_queueing_theory_says(utilization: float) -> None:
    """M/D/1: the mean wait is utilization * service / (2 * (1 - utilization))."""
    service, load = 0.01, RequestLoad(input=4, output=1)
    trial = try_rate(server(service), load, Targets(ttft=1, itl=1), utilization / service, 1500)
    wait = sum(trial.ttft) / len(trial.ttft) - service
    assert wait == pytest.approx(utilization * service / (2 * (1 - utilization)), rel=0.15)
    assert trial.busy == pytest.approx(utilization, rel=0.1)


@pytest.mark.full
def test_the_capacity_of_that_server_keeps_its_quantile() -> None:
    """M/D/1: 5 % wait for more than 3 services at 0.62: (1 - u) / (u * e^t - 1) * e^-3t, where u * (e^t - 1) = t."""
    load, service = RequestLoad(input=4, output=1), 0.01
    found = find_capacity(server(service), load, Targets(ttft=4 * service, itl=1), count=500)
    assert found is not None and found.rate * service == pytest.approx(0.62, rel=0.1)


def test_a_trial_has_more_requests_where_more_run_at_once() -> None:
    counts = [num_requests(LOAD, TARGETS, rate) for rate in (0.01, 1, 30, 100, 1000)]
    assert counts == sorted(counts) and counts[0] == 120 and counts[-1] == 800
    assert num_requests(RequestLoad(input=1, output=10_000), TARGETS, 1e-4) == 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Targets(ttft=0, itl=1), "ttft_ms must be a positive number, got 0"),
        (lambda: Targets(ttft=1, itl=float("nan")), "itl_ms must be a positive number"),
        (lambda: Targets(ttft=1, itl=1, share=1.5), "attainment must be above 0 and at most 1, got 1.5"),
        (lambda: RequestLoad(input=0, output=1), "input must be at least 1"),
        (lambda: RequestLoad(input=1, output=-1), "output must be at least 1"),
    ],
)
def test_numbers_out_of_range_are_errors(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_drafts_that_are_confirmed_raise_the_rate_that_a_replica_serves() -> None:
    load, rates = RequestLoad(input=16, output=48), []
    for drafts in (0.0, 2.0):
        costs = SimStepModel(step=0.01, row=0.0005, context_token=1e-6, confirmed_drafts=drafts)
        replica = SimulatedReplica(step_model=costs, scheduler=SchedulerConfig(max_running_requests=4), num_blocks=100)
        result = replica.run(load.workload(40, None))
        rates.append(40 / result.seconds)
        assert rates[-1] == pytest.approx(replica.rate_limit(load), rel=0.1)
    # 48 tokens of 10.5 ms to 12 ms, against a third of the constant part.
    assert rates[1] > 1.9 * rates[0]
