"""simulate: the real scheduler on a fake clock; small cases are computed by hand, large ones are repeated."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.bench.simulation.simulation import SimMachine, SimResult, as_request, max_request_tokens, simulate
from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.poisson_arrivals import with_poisson_arrivals
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.scheduler.batching_policy import NAMES as BATCHINGS
from chairlift.engine.scheduler.waiting_queue.base import POLICIES
from support_shares import each_value

SECOND = SimStepModel(step=1.0)
CROWD = SimMachine(step_model=SimStepModel(step=0.02, row=0.001, prefill_token=0.0005, noise=0.2))


def item(at: float, prompt: int = 4, output: int = 3, **options: Any) -> WorkloadRequest:
    return WorkloadRequest(at=at, prompt_token_ids=tuple(range(1, prompt + 1)), output_tokens=output, **options)


def workload(*items: WorkloadRequest) -> Workload:
    return Workload(name="by hand", seed=0, items=items)


def run(*items: WorkloadRequest, machine: SimMachine | None = None, **options: Any) -> SimResult:
    return simulate(workload(*items), SchedulerConfig(**options), machine or SimMachine(step_model=SECOND))


def text(result: SimResult) -> str:
    return json.dumps(result.report(), sort_keys=True)


def test_a_request_alone_takes_a_step_for_each_token() -> None:
    result = run(item(2.5))
    assert result.records[0].stamps == [3.5, 4.5, 5.5] and result.records[0].ended == 5.5
    assert result.queued == [2.5] and result.first_scheduled == [2.5] and result.waits == [0.0]
    assert result.seconds == 5.5 and result.step_seconds == [1.0] * 3 and result.step_ends == [3.5, 4.5, 5.5]


def test_a_request_that_arrives_during_a_step_is_queued_when_it_ends() -> None:
    result = run(item(0.0), item(0.25))
    assert result.queued == [0.0, 1.0] and result.first_scheduled == [0.0, 1.0] and result.waits == [0.0, 0.75]
    report = result.report()
    assert report["ttft_seconds"]["mean"] == pytest.approx((1.0 + 1.75) / 2), "counted from the arrival"
    assert report["wait_seconds"]["max"] == 0.75


def test_an_idle_engine_jumps_to_the_next_arrival() -> None:
    result = run(item(0.0), item(1_000_000.0))
    assert result.first_scheduled == [0.0, 1_000_000.0] and len(result.steps) == 6
    assert result.report()["step_seconds"] == pytest.approx(6.0)


def test_a_step_takes_what_the_model_says_of_it() -> None:
    times = SimStepModel(step=1.0, row=0.1, prefill_token=0.01, context_token=0.001)
    result = run(item(0.0, prompt=10, output=2), machine=SimMachine(step_model=times))
    assert result.step_seconds == pytest.approx([1 + 0.1 + 0.1 + 0.01, 1 + 0.1 + 0.011])
    assert [step.collect_ms for step in result.steps] == [seconds * 1e3 for seconds in result.step_seconds]


def test_a_request_waits_while_the_only_slot_is_used() -> None:
    result = run(item(0.0), item(0.0), max_running_requests=1)
    assert result.first_scheduled == [0.0, 3.0]
    assert (result.peak_running, result.mean_running) == (1, 1.0)


@pytest.mark.full
def test_two_launches_in_flight_do_the_same_work_in_about_the_same_time() -> None:
    load = with_poisson_arrivals(generate("longtail", vocab_size=1000, count=60), 20.0)
    result = [simulate(load, SchedulerConfig(overlap=overlap), CROWD) for overlap in (False, True)]
    assert all(record.is_complete for each in result for record in each.records)
    assert max(step.in_flight for step in result[1].steps) == 2
    assert [record.output_tokens for record in result[0].records] == [
        record.output_tokens for record in result[1].records
    ]
    assert result[1].seconds == pytest.approx(result[0].seconds, rel=0.2)


@pytest.mark.full
@pytest.mark.parametrize(("policy", "batching"), each_value(POLICIES, BATCHINGS))
def test_every_policy_serves_all_requests_and_depends_only_on_the_seed(policy: str, batching: str) -> None:
    load = with_poisson_arrivals(generate("longtail", vocab_size=1000, count=80, seed=3), 30.0)
    config = SchedulerConfig(
        scheduling_policy=policy, batching_policy=batching, max_running_requests=16, max_batch_tokens=128
    )
    machine = replace(CROWD, num_blocks=64, seed=7)
    result, again = (simulate(load, config, machine) for _ in range(2))
    assert all(record.is_complete for record in result.records)
    assert text(result) == text(again) != text(simulate(load, config, replace(machine, seed=8)))
    assert sum(result.step_seconds) <= result.seconds + 1e-6
    assert all(before <= after for before, after in pairwise(result.step_ends))


def test_outputs_are_reported_as_they_come() -> None:
    outputs: list[tuple[float, int, int]] = []
    simulate(
        workload(item(0.0, output=2)),
        SchedulerConfig(),
        SimMachine(step_model=SECOND),
        on_output=lambda *new: outputs.append(new),
    )
    assert outputs == [(1.0, 0, 1), (2.0, 0, 1)]


def test_recomputed_tokens_are_reported() -> None:
    grown = [replace(item(0.0, output=200), prompt_token_ids=(7,) * 32 + (number,)) for number in range(6)]
    tight, roomy = (run(*grown, machine=SimMachine(step_model=SECOND, num_blocks=blocks)) for blocks in (20, None))
    assert (roomy.preemptions, roomy.computed_again) == (0, 0.0)
    assert roomy.scheduled_tokens == 6 * 232 - 5 * 32, "one computes what they share"
    again = tight.scheduled_tokens - (6 * 232 - sum(record.cached_tokens for record in tight.records))
    assert tight.preemptions > 0 and again > 0
    assert tight.computed_again == pytest.approx(again / (tight.scheduled_tokens - again))


def test_cached_prompts_are_hits_and_were_not_computed() -> None:
    result = run(item(0.0, prompt=64), item(10.0, prompt=64))
    assert result.hit_rate == pytest.approx(48 / 128) and result.computed_again == 0.0
    cold = SimMachine(step_model=SECOND, enable_prefix_caching=False)
    assert run(item(0.0, prompt=64), item(10.0, prompt=64), machine=cold).hit_rate == 0.0


def test_without_a_number_the_pool_has_room_for_every_running_request() -> None:
    assert run(item(0.0, prompt=30, output=3), max_running_requests=5).total_kv_tokens == 5 * 3 * 16
    assert max_request_tokens(workload(item(0.0, prompt=30, output=3), item(0.0))) == 33


def test_tenants_are_reported_separately() -> None:
    report = run(item(0.0, tenant="a", output=5), item(0.0, tenant="b"), item(0.0, tenant="b")).report()
    assert {name: each["tokens"]["output"] for name, each in report["tenants"].items()} == {"a": 5, "b": 6}
    assert run(item(0.0)).report()["tenants"] == {}


def test_a_request_whose_time_is_up_has_failed_and_the_others_go_on() -> None:
    result = run(item(0.0, output=9, timeout=2.5), item(0.0))
    assert [record.error for record in result.records] == ["timeout", ""]
    assert result.report()["requests"]["errors"] == {"timeout": 1}


def test_a_full_waiting_queue_rejects() -> None:
    result = run(*[item(0.0) for _ in range(5)], max_queue_size=2, max_running_requests=1)
    assert [record.error for record in result.records] == ["", "", "queue_full", "queue_full", "queue_full"]
    assert result.first_scheduled[2:] == [None] * 3 and len(result.waits) == 2


def test_a_request_that_can_never_be_served_is_named_before_anything_runs() -> None:
    with pytest.raises(InvalidRequest, match=r"request 1 of the workload: .*12"):
        run(item(0.0), item(0.0, prompt=30), max_model_len=12)


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown scheduling_policy 'lifo'"):
        run(item(0.0), scheduling_policy="lifo")


def test_a_request_carries_what_its_item_says() -> None:
    request = as_request(item(0.0, tenant="a", priority=4, timeout=9.0), 17)
    assert (request.request_id, request.tenant, request.priority, request.timeout) == ("17", "a", 4, 9.0)
    assert request.params.max_tokens == 3 and request.params.greedy and request.eos_token_ids == ()


def test_any_seed_and_the_largest_token_ids_will_do() -> None:
    huge = replace(item(0.0), prompt_token_ids=(2**31 - 2, 5))
    assert run(huge, machine=replace(CROWD, seed=-5)).records[0].is_complete
