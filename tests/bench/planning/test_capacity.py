"""Capacity: a queue with a known waiting time, the search, and replicas that never fall with the rate."""

from dataclasses import replace
from typing import Any

import pytest

from chairlift.bench.planning.capacity import CapacityEstimate, Targets, Trial, find_capacity, try_alone, try_rate
from chairlift.bench.planning.simulated_replica import RequestLoad, SimulatedReplica
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.core.errors import ConfigError

LOAD, TARGETS = RequestLoad(input=64, output=16), Targets(ttft=0.2, itl=0.025)
TIMES = SimStepModel(step=0.01, row=1e-3, prefill_token=1e-4, context_token=1e-7, prefill_pair=1e-8)
REPLICA = SimulatedReplica(step_model=TIMES, num_blocks=200)


@pytest.mark.full
def test_the_rate_found_keeps_the_targets_and_a_higher_one_does_not() -> None:
    found = find_capacity(REPLICA, LOAD, TARGETS, count=60)
    assert found is not None and found.rate < REPLICA.rate_limit(LOAD)
    assert try_rate(REPLICA, LOAD, TARGETS, found.rate, 60).attainment >= TARGETS.share
    assert try_rate(REPLICA, LOAD, TARGETS, found.rate * 1.05, 60).attainment < TARGETS.share
    assert find_capacity(REPLICA, LOAD, TARGETS, count=60, least_rate=found.rate * 1.2) is None


def test_a_higher_rate_never_needs_fewer_replicas() -> None:
    capacity = CapacityEstimate(rate=7.3, alone=try_alone(REPLICA, LOAD, TARGETS), trials=1)
    counts = [capacity.replicas(tenths / 10) for tenths in range(1, 800)]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == 11
    assert [capacity.replicas(7.3), capacity.replicas(14.6), capacity.replicas(14.61)] == [1, 2, 3]


@pytest.mark.full
@pytest.mark.parametrize(
    "change",
    [
        {"targets": replace(TARGETS, ttft=0.02)}, {"targets": replace(TARGETS, itl=0.018)},
        {"replica": replace(REPLICA, num_blocks=10)},
        {"replica": replace(REPLICA, step_model=replace(TIMES, step=0.02))},
        {"load": replace(LOAD, input=128)}, {"load": replace(LOAD, output=48)},
    ],
    ids=["ttft", "itl", "cache", "step", "input", "output"],
)  # fmt: skip
def test_tighter_targets_a_slower_replica_and_longer_requests_lower_the_rate(change: dict[str, Any]) -> None:
    def rate(**arguments: Any) -> float:
        found = find_capacity(**{"replica": REPLICA, "load": LOAD, "targets": TARGETS, **arguments}, count=50)
        assert found is not None
        return found.rate

    assert rate(**change) < rate()


@pytest.mark.full
def test_stages_of_a_pipeline_multiply_the_rate_of_one_group() -> None:
    one, two = find_capacity(REPLICA, LOAD, TARGETS, count=50), find_capacity(
        replace(REPLICA, groups=2), LOAD, TARGETS, count=50
    )  # fmt: skip
    assert one is not None and two is not None and two.rate == pytest.approx(2 * one.rate)
    assert two.alone.ttft == one.alone.ttft


@pytest.mark.full
@pytest.mark.parametrize(
    ("targets", "option", "message"),
    [
        (Targets(ttft=0.001, itl=1), "ttft_ms",
         r"its first token takes 17\.4\d? ms, the target is 1 ms; .*--ttft-ms 18 --itl-ms 1000,"),
        (Targets(ttft=1, itl=0.002), "itl_ms",
         r"a token takes 11\.01 ms, the target is 2 ms; .*--ttft-ms 1000 --itl-ms 12,"),
    ],
)  # fmt: skip
def test_targets_that_a_request_alone_misses_are_an_error_with_the_nearest(
    targets: Targets, option: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        find_capacity(REPLICA, LOAD, targets, count=40)
    assert caught.value.details["option"] == option
    nearest = Targets(ttft=max(targets.ttft, 0.018), itl=max(targets.itl, 0.012))
    assert find_capacity(REPLICA, LOAD, nearest, count=40) is not None


def test_a_share_that_no_rate_reaches_is_an_error() -> None:
    def fails(rate: float) -> Trial:
        return replace(try_alone(REPLICA, LOAD, TARGETS), attainment=0.9, rate=rate)

    with pytest.raises(ConfigError, match="no number of replicas keeps the targets: 95% of the requests"):
        find_capacity(REPLICA, LOAD, TARGETS, try_at=fails)
