"""simulate_fleet: cold starts, drains, held requests, moves to new replicas, and what a scaling rule sees."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.bench.fleet_simulation.fleet_result import FleetResult
from chairlift.bench.fleet_simulation.fleet_run import FleetOptions, simulate_fleet
from chairlift.bench.fleet_simulation.load.arrivals import Arrivals, ArrivalSource
from chairlift.bench.fleet_simulation.load.synthetic_arrivals import ArrivalOptions, draw_arrivals
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import ScalingTarget
from chairlift.bench.fleet_simulation.sim_router import SimRouter
from chairlift.core.load_report import ReplicaState
from chairlift.engine.config import SchedulerConfig

OPTIONS = FleetOptions(
    machine=SimReplicaSettings(config=SchedulerConfig(max_running_requests=8, max_prefill_tokens=256)),
    cold_start_seconds=(10.0, 10.0), slo={"ttft": 5.0},
)  # fmt: skip


class ScriptedRule:
    """Asks a function for the target; remembers what it saw."""

    interval_seconds = 1.0
    needs_sample = True

    def __init__(self, target_at: Callable[[PoolSample], int | ScalingTarget]) -> None:
        self._target_at = target_at
        self.samples: list[PoolSample] = []

    def decide(self, sample: PoolSample) -> ScalingTarget:
        self.samples.append(sample)
        target = self._target_at(sample)
        return target if isinstance(target, ScalingTarget) else ScalingTarget(target)

    def states_at(self, at: float) -> list[str]:
        sample = next(each for each in self.samples if each.at_seconds >= at)
        return sorted(each.state for each in sample.replicas)


def arrivals(*at: float, output_tokens: int = 20) -> Arrivals:
    counts = np.full(len(at), 50), np.full(len(at), output_tokens)
    return Arrivals(name="some", at=np.array(at), prompt_tokens=counts[0], output_tokens=counts[1], seconds=60.0)


def simulate(load: Arrivals, rule: ScriptedRule, options: FleetOptions = OPTIONS) -> FleetResult:
    return simulate_fleet(ArrivalSource(load), rule, options, load.seconds)


def test_replicas_serve_after_their_cold_start_and_drained_ones_finish_their_requests() -> None:
    rule = ScriptedRule(lambda sample: 2 if sample.at_seconds < 20 else 1)
    load = arrivals(*[18.5 + n / 100 for n in range(10)], 40.0, output_tokens=400)
    result = simulate(load, rule)
    starting, ready, draining = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING
    assert rule.states_at(1.0) == [ready, starting] and rule.states_at(11.0) == [ready, ready]
    assert rule.states_at(21.0) == [draining, ready] and rule.states_at(39.0) == [ready]
    assert result.num_requests == 11 and min(result.requests_by_replica.values()) > 0
    assert 60 + 20 < result.replica_seconds < 60 + 40
    assert (result.growths, result.shrinkings, result.reversals) == (1, 1, 1)


def test_the_replicas_that_a_rule_names_go_then_those_that_start() -> None:
    def target_at(sample: PoolSample) -> int | ScalingTarget:
        if sample.at_seconds < 20:
            return 4
        return ScalingTarget(2, ("replica-0000000",)) if sample.at_seconds < 21 else 2

    options = replace(OPTIONS, initial_replicas=3, cold_start_seconds=(50.0, 50.0))
    rule = ScriptedRule(target_at)
    simulate(arrivals(30.0), rule, options)
    assert [each.replica_id for each in rule.samples[-1].replicas] == ["replica-0000001", "replica-0000002"]


def test_no_more_replicas_exist_than_are_allowed_draining_ones_included() -> None:
    rule = ScriptedRule(lambda sample: 1 if sample.at_seconds == 2 else 9)
    options = replace(OPTIONS, initial_replicas=3, max_replicas=3)
    simulate(arrivals(*[1 + n / 10 for n in range(9)], output_tokens=300), rule, options)
    assert max(len(sample.replicas) for sample in rule.samples) == 3
    assert rule.states_at(3.0).count(ReplicaState.DRAINING) > 0


def test_a_held_request_wakes_a_fleet_of_none_at_once() -> None:
    rule = ScriptedRule(lambda sample: 1 if sample.held_requests or sample.replicas else 0)
    result = simulate(arrivals(5.5, 6.0), rule, replace(OPTIONS, initial_replicas=0))
    wake = next(sample for sample in rule.samples if sample.held_requests)
    assert (wake.at_seconds, wake.held_requests, wake.held_tokens) == (5.5, 1, 50)
    assert result.num_requests == 2 and 10 < result.ttft_seconds[0] < 10.5
    assert result.max_waiting == 2


def test_a_rule_sees_rates_and_the_latencies_of_recent_requests_only() -> None:
    rule = ScriptedRule(lambda sample: 1)
    simulate(arrivals(*[1 + n / 10 for n in range(20)], 50.0), rule)
    by_time = {sample.at_seconds: sample for sample in rule.samples}
    assert by_time[1.0].requests_per_second == pytest.approx(1, abs=1) and by_time[2.0].requests_per_second == 10
    assert by_time[0.0].ttft_seconds is None and (by_time[10.0].ttft_seconds or 0) > 0
    assert (by_time[10.0].itl_seconds or 0) > 0 and by_time[49.0].itl_seconds is None


def test_a_seed_replays_a_run_and_another_seed_gives_another() -> None:
    load = draw_arrivals(ArrivalOptions(kind="bursts", rate=3, requests=150, period_seconds=20))
    options = replace(OPTIONS, cold_start_seconds=(5.0, 15.0))

    def run(seed: int) -> FleetResult:
        rule = ScriptedRule(lambda sample: 1 + (sum(each.running_requests or 0 for each in sample.replicas) > 5))
        return simulate(load, rule, replace(options, seed=seed))

    assert run(1) == run(1) != run(2)
    assert math.isclose(run(1).report(1.0)["cost"], run(1).replica_seconds / 3600)


def test_what_waits_behind_a_burst_moves_to_replicas_that_become_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = ScriptedRule(lambda sample: 1 if sample.at_seconds < 1 else 3)
    load = arrivals(*[n / 100 for n in range(40)], output_tokens=300)
    moved = simulate(load, rule)
    monkeypatch.setattr(SimRouter, "choose_moves", lambda *_: [])
    stayed = simulate(load, rule)
    assert list(stayed.requests_by_replica.values()) == [40, 0, 0]
    assert len(moved.requests_by_replica) == 3 and min(moved.requests_by_replica.values()) >= 4
    assert moved.num_requests == stayed.num_requests == 40
    assert max(moved.ttft_seconds) < 0.9 * max(stayed.ttft_seconds)
