"""make_plan: the choice of a split, devices that never fall with the rate, and costs."""

from dataclasses import replace
from typing import Any

import pytest

from chairlift.bench.planning.capacity import Targets
from chairlift.bench.planning.hardware_spec import Hardware
from chairlift.bench.planning.model_memory import ModelMemory
from chairlift.bench.planning.parallel_sizes_and_memory import fitting_replicas
from chairlift.bench.planning.plan import CapacityPlan, PlanInput, make_plan, simulated_replica
from chairlift.bench.planning.simulated_replica import RequestLoad
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.core.errors import ConfigError
from support_planning import published_shape

GPUS = Hardware(gpus=8, memory=80 * 10**9, price=2.0)
MACHINE = Hardware(gpus=0, memory=32 * 10**9, cores=8)


def plan_input(name: str = "llama-70b", **fields: Any) -> PlanInput:
    return PlanInput(**{
        "memory": ModelMemory(shape=published_shape(name), dtype="bfloat16"), "hardware": GPUS,
        "load": RequestLoad(input=400, output=8), "rate": 2.0, "targets": Targets(ttft=2.0, itl=0.05), "count": 24,
        **fields,
    })  # fmt: skip


def split(plan: CapacityPlan) -> tuple[int, int, int]:
    sizes = plan.replica.sizes
    return sizes.tensor, sizes.pipeline, sizes.context


@pytest.fixture(scope="module")
def large() -> CapacityPlan:
    return make_plan(plan_input())


@pytest.mark.full
def test_a_large_model_is_split_and_the_others_are_named(large: CapacityPlan) -> None:
    assert split(large) == (4, 1, 1)
    assert set(large.others) == {
        "tensor 1, pipeline 3, context 1", "tensor 2, pipeline 2, context 1", "tensor 8, pipeline 1, context 1",
    }  # fmt: skip
    assert large.devices == 4 * large.replicas and large.replicas == large.capacity.replicas(2.0)
    assert 0 < large.utilization <= 1 and large.at_rate.attainment >= 0.9


@pytest.mark.full
def test_costs_follow_from_devices_and_tokens(large: CapacityPlan) -> None:
    assert large.cost_per_hour == 2.0 * large.devices
    assert large.cost_per_million(8) == pytest.approx(large.cost_per_hour / (2 * 8 * 3600) * 1e6)
    free = replace(large, given=replace(large.given, hardware=replace(GPUS, price=None)))
    assert free.cost_per_hour is None and free.cost_per_million(20) is None


def test_missing_devices_are_counted_against_those_at_hand(large: CapacityPlan) -> None:
    few = replace(large, given=replace(large.given, hardware=replace(GPUS, gpus=4), rate=3.5 * large.capacity.rate))
    assert (few.replicas, few.devices, few.missing_devices) == (4, 16, 12)
    assert few.rate_at_hand == pytest.approx(large.capacity.rate)


def test_shares_of_the_time_sum_to_one(large: CapacityPlan) -> None:
    assert sum(large.step_shares.values()) == pytest.approx(1)
    fast = replace(large, step_model=SimStepModel(step=1.0))
    assert fast.step_shares["constant"] == 1


@pytest.mark.full
def test_tight_targets_take_a_larger_split() -> None:
    # 140e9 bytes at 1.5 TB/s are 92 ms on one device, 28 ms on four and 16 ms on eight.
    tight = make_plan(plan_input(targets=Targets(ttft=2.0, itl=0.022)))
    assert split(tight) == (8, 1, 1)
    assert "a request without others does not" in tight.others["tensor 4, pipeline 1, context 1"]


@pytest.mark.full
def test_devices_never_fall_with_the_rate() -> None:
    devices = [make_plan(plan_input(rate=rate)).devices for rate in (0.5, 60.0)]
    assert devices == sorted(devices) and devices[0] < devices[-1]


def test_a_machine_runs_one_replica_whatever_the_model_has() -> None:
    plan = make_plan(plan_input("Qwen3-0.6B", hardware=MACHINE, rate=20.0))
    assert split(plan) == (1, 1, 1) and plan.replicas > 1 and plan.missing_devices == 0


def test_fitted_step_times_replace_the_estimate_and_try_one_split() -> None:
    times = SimStepModel(step=0.005, origin="fitted")
    plan = make_plan(plan_input(step_model=times))
    assert plan.step_model is times and plan.others == {} and split(plan) == (1, 3, 1)


def test_the_stages_share_the_cache_and_a_cpu_prefers_small_prefills() -> None:
    given = plan_input()
    replica = fitting_replicas(given.memory, GPUS.device_memory, 408, 3)[0]
    whole, stages = replica.kv_cache // replica.request, simulated_replica(given, replica, SimStepModel(step=1.0))
    assert stages.groups == 3 and stages.num_blocks == pytest.approx(whole * 26 / 3, rel=0.01)
    assert stages.scheduler.max_prefill_tokens is None
    small = plan_input("Qwen3-0.6B", hardware=MACHINE)
    machine = fitting_replicas(small.memory, MACHINE.device_memory, 408, 1)[0]
    assert simulated_replica(small, machine, SimStepModel(step=1.0)).scheduler.max_prefill_tokens == 256


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": 0.0}, "rate must be a positive number of requests per second, got 0"),
        ({"load": RequestLoad(input=200_000, output=1)}, "200001 tokens is longer than the model's 131072 positions"),
    ],
)
def test_input_that_no_plan_has_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_input(**fields)


def test_targets_that_no_split_reaches_are_an_error_of_the_largest_split() -> None:
    with pytest.raises(ConfigError, match="a request without others does not") as caught:
        make_plan(plan_input(targets=Targets(ttft=1e-3, itl=1e-3)))
    assert 15 < caught.value.details["itl_ms"] < 25
