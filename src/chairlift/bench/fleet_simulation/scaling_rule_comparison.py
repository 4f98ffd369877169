"""compare_rules: runs one load under several scaling rules, and finds what each costs for which SLO attainment.

static       the fewest replicas, the same ones all the time, that reach the goal
maximum      all replicas that are allowed, all the time
oracle       knows the arrivals: the least that a plan by their rate needs to reach the goal, started in time
autoscaler   the production autoscaler, with several targets of concurrency
hpa          the HorizontalPodAutoscaler on CPU, with several targets of utilisation
threshold    the autoscaler's threshold mode, with several thresholds
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import active_children, get_context

import numpy as np

from chairlift.autoscaler.config import AutoscalerConfig, TargetConfig, ThresholdConfig
from chairlift.bench.fleet_simulation.fleet_result import FleetResult
from chairlift.bench.fleet_simulation.fleet_run import FleetOptions, simulate_fleet
from chairlift.bench.fleet_simulation.load.arrivals import Arrivals, ArrivalSource
from chairlift.bench.fleet_simulation.scaling_rules import AutoscalerRule, HpaRule, PlannedRule, StaticRule
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import ScalingRule
from chairlift.core.errors import ConfigError
from chairlift.core.host.blocked_interrupt import blocked_interrupt

PLAN_WINDOW_SECONDS = 15.0
"""Windows of time for which the oracle plans."""

ORACLE_STEPS = 6
"""Simulations by which the oracle's plan becomes as small as possible."""

MAX_PLAN_FACTOR = 8.0
"""Largest plan that the oracle tries, as a multiple of what the rates need by the capacity of one replica."""

RULE_NAMES = ("autoscaler", "static", "oracle", "hpa", "threshold", "maximum")
DEFAULT_RULE_NAMES = RULE_NAMES[:-1]

HPA_CPU_RATIOS = (0.5, 0.3, 0.7, 0.9)
THRESHOLDS = (
    ThresholdConfig(),
    ThresholdConfig(cpu_high=None, cpu_low=None),
    ThresholdConfig(cpu_high=None, cpu_low=None, queue_high=2.0, queue_low=0.5),
    ThresholdConfig(cpu_high=None, cpu_low=None, queue_high=0.5, queue_low=0.1),
)  # fmt: skip
"""Variants of the rules, so that each is compared at its best; the first one is the usual choice or the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad:
    """A load, the fleet that serves it, and what is wanted.

    Attributes:
        arrivals: the requests.
        options: the fleet; its initial replicas are those of all rules but `static`.
        min_replicas: fewest replicas; 0 for scale to zero.
        slo_goal: share of the requests that are to be within the SLO.
        concurrency_ratios: targets of the autoscaler to compare; see TargetConfig.
    """

    arrivals: Arrivals
    options: FleetOptions
    min_replicas: int = 1
    slo_goal: float = 0.99
    concurrency_ratios: tuple[float, ...] = (0.7, 0.5, 0.3)

    def simulate(self, rule: ScalingRule, initial_replicas: int | None = None) -> FleetResult:
        """Simulate the load under a rule."""
        options = self.options if initial_replicas is None else replace(self.options, initial_replicas=initial_replicas)
        return simulate_fleet(ArrivalSource(self.arrivals), rule, options, self.arrivals.seconds)


@dataclass(frozen=True, slots=True)
class FleetArm:
    """One simulated rule: its name, the parameter of this variant, and the result."""

    rule: str
    parameter: str
    result: FleetResult


def compare_rules(load: FleetLoad, names: Sequence[str], capacity: float, num_processes: int) -> list[FleetArm]:
    """Simulate the load under the rules of these names; equal arguments but the last give equal results."""
    if unknown := [name for name in names if name not in RULE_NAMES]:
        message = f"unknown scaling rule {unknown[0]!r}; available are {', '.join(RULE_NAMES)}"
        raise ConfigError(message, option="scaling_rules")
    tasks = [task for name in names for task in _tasks(name, load, capacity)]
    if num_processes == 1 or len(tasks) == 1:
        return [_run_task(task, load) for task in tasks]
    others = set(active_children())
    with ProcessPoolExecutor(min(num_processes, len(tasks)), mp_context=get_context("spawn")) as pool:
        try:
            with blocked_interrupt():
                arms = pool.map(_run_task, tasks, [load] * len(tasks))
            return list(arms)
        except KeyboardInterrupt:
            for child in set(active_children()) - others:  # a simulation may take minutes
                child.terminate()
            raise


# -- rules -------------------------------------------------------------------------------------------------------------

Task = tuple[str, str, Callable[[FleetLoad], FleetResult]]
"""Rule, parameter, and the simulation."""


def _run_task(task: Task, load: FleetLoad) -> FleetArm:
    name, parameter, simulate = task
    return FleetArm(name, parameter, simulate(load))


def _tasks(name: str, load: FleetLoad, capacity: float) -> list[Task]:
    options, slo = load.options, load.options.slo
    base = AutoscalerConfig(
        min_replicas=load.min_replicas, max_replicas=options.max_replicas,
        cold_start_seconds=options.cold_start_seconds[1],
    )  # fmt: skip
    if name == "static":
        return [(name, "the fewest for the goal", _fewest_static)]
    if name == "maximum":
        return [(name, f"{options.max_replicas} replicas", _all_replicas)]
    if name == "oracle":
        return [(name, "the least for the goal", partial(_least_plan, capacity=capacity))]
    if name == "hpa":
        return [(name, f"cpu {ratio:g}", partial(_under_hpa, ratio=ratio)) for ratio in HPA_CPU_RATIOS]
    if name == "threshold":
        return [
            (name, _shown_thresholds(each), partial(_under_autoscaler, config=replace(base, thresholds=each)))
            for each in THRESHOLDS
        ]
    tasks: list[Task] = []
    for ratio in load.concurrency_ratios:
        targets = TargetConfig(
            concurrency_ratio=ratio, ttft_seconds=slo.get("ttft"), itl_seconds=slo.get("tpot", slo.get("itl"))
        )
        config = replace(base, targets=targets)
        tasks.append((name, f"concurrency {ratio:g}", partial(_under_autoscaler, config=config)))
    return tasks


def _shown_thresholds(thresholds: ThresholdConfig) -> str:
    parts = [
        f"{name} {value:g}" for name, value in (("cpu", thresholds.cpu_high), ("queue", thresholds.queue_high))
        if value is not None
    ]  # fmt: skip
    return ", ".join(parts)


def _under_autoscaler(load: FleetLoad, config: AutoscalerConfig) -> FleetResult:
    return load.simulate(AutoscalerRule(config))


def _under_hpa(load: FleetLoad, ratio: float) -> FleetResult:
    return load.simulate(HpaRule(ratio, load.min_replicas, load.options.max_replicas))


def _all_replicas(load: FleetLoad) -> FleetResult:
    return load.simulate(StaticRule(load.options.max_replicas), load.options.max_replicas)


def _fewest_static(load: FleetLoad) -> FleetResult:
    """Return the result of the fewest replicas that reach the goal, or of the most that are allowed."""
    low, high = 0, load.options.max_replicas
    best = load.simulate(StaticRule(high), high)
    while low + 1 < high:
        middle = (low + high) // 2
        result = load.simulate(StaticRule(middle), middle)
        if result.slo_attainment >= load.slo_goal:
            high, best = middle, result
        else:
            low = middle
    return best


def _least_plan(load: FleetLoad, capacity: float) -> FleetResult:
    """Return the result of the cheapest plan in proportion to the rates that reaches the goal."""
    rates, options = load.arrivals.rates(PLAN_WINDOW_SECONDS), load.options

    def simulate(factor: float) -> FleetResult:
        plan = np.minimum(np.maximum(np.ceil(factor * rates / capacity), 1), options.max_replicas)
        rule = PlannedRule(plan, PLAN_WINDOW_SECONDS, options.cold_start_seconds[1])
        return load.simulate(rule, int(plan[0]))

    low, high, best = 0.0, 1.0, simulate(1.0)
    while best.slo_attainment < load.slo_goal and high < MAX_PLAN_FACTOR:
        low, high = high, high * 1.5
        best = simulate(high)
    for _ in range(ORACLE_STEPS):
        middle = (low + high) / 2
        result = simulate(middle)
        if result.slo_attainment >= load.slo_goal:
            high, best = middle, result
        else:
            low = middle
    return best
