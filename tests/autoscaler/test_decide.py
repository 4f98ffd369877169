"""decide: idle and wake, floors, steps and budget in their order, which replicas go, and old samples."""

from dataclasses import replace
from typing import Any

import pytest

from chairlift.autoscaler.config import AutoscalerConfig, BudgetConfig, ExternalTarget, StepLimit, TargetConfig
from chairlift.autoscaler.decide import decide
from chairlift.autoscaler.history import PoolHistory
from chairlift.autoscaler.limits.schedule import Schedule
from support_autoscaler import DRAINING, STARTING, history_of, pool, ready, replicas_of, silent, steady

TO_ZERO = AutoscalerConfig(min_replicas=0, max_replicas=8, idle_seconds=60.0)
ALWAYS = Schedule(start="0 0 * * *", end="0 0 31 2 *", replicas=3)


def test_without_a_sample_nothing_is_known() -> None:
    decision = decide(PoolHistory(TO_ZERO), TO_ZERO, 5.0)
    assert (decision.target, decision.has_change, decision.reason) == (0, False, "missing_data")


@pytest.mark.parametrize("later", [31.0, 4000.0, -31.0])
def test_an_old_sample_changes_nothing_not_even_for_floors(later: float) -> None:
    config = AutoscalerConfig(min_replicas=3)
    history, decision = history_of(config, steady(1, 20))
    assert decision.target == 3
    decision = decide(history, config, 20.0 + later)
    assert (decision.target, decision.reason) == (1, "missing_data")


def test_an_idle_pool_goes_to_zero_after_its_time() -> None:
    assert history_of(TO_ZERO, steady(2, 58))[1].target == 2
    decision = history_of(TO_ZERO, steady(2, 60))[1]
    assert (decision.target, decision.reason, decision.remove) == (0, "idle", ("r0", "r1"))
    assert history_of(AutoscalerConfig(idle_seconds=60.0), steady(2, 60))[1].target == 2


def test_a_panic_ends_before_an_idle_pool_goes_to_zero() -> None:
    config = replace(TO_ZERO, idle_seconds=4.0)
    burst = steady(2, 6, running_requests=10.0, waiting_requests=30.0)
    assert history_of(config, [*burst, *steady(2, 20, start=8)])[1].target == 2
    assert history_of(config, [*burst, *steady(2, 70, start=8)])[1].target == 0


@pytest.mark.parametrize("load", [{"running_requests": 1.0}, {"running_requests": None}, {"waiting_requests": 1.0}])
def test_a_pool_that_works_or_says_nothing_does_not_go_to_zero(load: dict[str, Any]) -> None:
    assert history_of(TO_ZERO, steady(2, 100, **load))[1].target == 2
    busy_now = [*steady(2, 60), pool(62, *replicas_of(2, **load))]
    assert history_of(TO_ZERO, busy_now)[1].target == 2


def test_a_metric_from_outside_keeps_an_idle_pool() -> None:
    targets = TargetConfig(external=(ExternalTarget(name="lag", target=10.0),))
    config = replace(TO_ZERO, targets=targets)
    samples = [replace(each, external={"lag": 1.0}) for each in steady(1, 100)]
    assert history_of(config, samples)[1].target == 1
    assert history_of(config, [replace(each, external={"lag": 0.0}) for each in samples])[1].target == 0
    assert history_of(config, [pool(at, external={"lag": 25.0}) for at in (0, 2, 4)])[1].target == 3
    missing = [replace(each, external={"lag": None}) for each in samples]
    assert history_of(config, missing)[1].target == 1, "missing data holds"


def test_the_last_replica_goes_only_when_idle() -> None:
    config = replace(TO_ZERO, idle_seconds=5000.0)
    decision = history_of(config, steady(3, 304))[1]
    assert (decision.target, decision.reason, decision.limits) == (1, "shrink", ("min_replicas",))


def test_a_held_request_wakes_an_empty_pool_at_once() -> None:
    assert history_of(TO_ZERO, [pool(0)])[1].target == 0
    decision = history_of(TO_ZERO, [pool(0, held_requests=1.0)])[1]
    assert (decision.target, decision.reason) == (1, "wake")
    coming = [pool(0, silent("a", STARTING), held_requests=1.0)]
    assert history_of(TO_ZERO, coming)[1].target == 1, "the one that starts is not ordered again"
    learnt = [pool(0, *replicas_of(1)), pool(2, held_requests=30.0), pool(4, held_requests=30.0)]
    assert history_of(TO_ZERO, learnt)[1].target == 5, "30 requests, 7 for each replica"


def test_floors_raise_the_target() -> None:
    schedules = replace(TO_ZERO, schedules=(ALWAYS,))
    decision = history_of(schedules, [pool(0)])[1]
    assert (decision.target, decision.limits) == (3, ("schedule",))
    assert history_of(schedules, steady(4, 100))[1].target == 3
    assert history_of(AutoscalerConfig(min_replicas=2), steady(1, 2))[1].limits == ("min_replicas",)


def test_steps_bound_floors_and_the_budget_bounds_both() -> None:
    config = AutoscalerConfig(
        min_replicas=6, max_replicas=8, growth_limits=(StepLimit(num_replicas=2),),
        budget=BudgetConfig(cost_per_hour=60.0, prices={"": 10.0}),
    )  # fmt: skip
    decision = history_of(config, [pool(0, ready("a"))])[1]
    assert (decision.target, decision.limits) == (3, ("min_replicas", "step"))
    assert decision.cost_per_hour == 30.0
    draining = [pool(0, ready("a"), *(silent(f"d{index}", DRAINING) for index in range(4)))]
    decision = history_of(config, draining)[1]
    assert (decision.target, decision.limits) == (2, ("min_replicas", "step", "cost_per_hour"))
    assert decision.cost_per_hour == 60.0
    returning = [silent(f"d{index}", DRAINING, can_return=True) for index in range(2)]
    decision = history_of(config, [pool(0, ready("a"), *returning, silent("d9", DRAINING))])[1]
    assert (decision.target, decision.cost_per_hour) == (3, 40.0), "a replica that is taken back costs nothing more"


def test_a_pool_above_its_budget_shrinks_even_without_data_and_in_a_panic() -> None:
    config = AutoscalerConfig(max_replicas=2)
    assert history_of(config, [pool(0, *(silent(name) for name in "abc"))])[1].remove == ("a",)
    full = history_of(config, steady(3, 20, running_requests=10.0, waiting_requests=50.0))[1]
    assert full.is_panic
    assert (full.target, full.limits) == (2, ("max_replicas",))


def test_replicas_that_start_count_and_go_first() -> None:
    burst = {"running_requests": 10.0, "waiting_requests": 18.0}
    config = AutoscalerConfig(max_replicas=9)
    starting = [silent(name, STARTING, age_seconds=age) for name, age in (("x", 5.0), ("y", 9.0), ("z", 1.0))]
    samples = [pool(at, *replicas_of(1, **burst), *starting) for at in (0, 2, 4, 6)]
    decision = history_of(config, samples)[1]
    assert (decision.current, decision.target) == (4, 4), "28 requests by 7: nothing is ordered twice"
    shrunk = history_of(AutoscalerConfig(max_replicas=2), samples)[1]
    assert shrunk.remove == ("z", "x")


def test_a_decision_only_reads_the_history() -> None:
    config = AutoscalerConfig(max_replicas=9)
    history, _ = history_of(config, steady(3, 310, running_requests=1.0))
    assert decide(history, config, 310.0) == decide(history, config, 310.0)


@pytest.mark.parametrize(("num_ready", "target"), [(1, 1), (2, 1), (3, 2), (8, 4)])
def test_a_latency_far_below_its_slo_halves_the_pool_at_most(num_ready: int, target: int) -> None:
    config = AutoscalerConfig(max_replicas=8, targets=TargetConfig(ttft_seconds=1.0))
    samples = [replace(each, ttft_seconds=0.02) for each in steady(num_ready, 400, running_requests=0.1)]
    assert history_of(config, samples)[1].target == target


@pytest.mark.parametrize("held", [float("nan"), float("inf"), -1.0, 0.0, None])
def test_what_is_no_number_of_requests_wakes_no_pool(held: float | None) -> None:
    assert history_of(TO_ZERO, [pool(at, held_requests=held) for at in (0, 2, 4)])[1].target == 0


def test_a_number_out_of_all_bounds_has_the_budget_as_its_limit() -> None:
    targets = TargetConfig(external=(ExternalTarget(name="lag", target=1e-3),))
    config = AutoscalerConfig(max_replicas=5, targets=targets)
    samples = [replace(each, external={"lag": 1e308}) for each in steady(1, 100)]
    assert history_of(config, samples)[1].target == 5
