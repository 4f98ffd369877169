"""Properties of the autoscaler in closed loop with a small model of a pool, over seeds (1,000 in the full suite)."""

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from chairlift.autoscaler.config import AutoscalerConfig, BudgetConfig, StepLimit, WindowConfig
from chairlift.autoscaler.limits.schedule import Schedule
from support_autoscaler_plant import READY, STARTING, Plant, Tick, num_needed, reversals
from support_shares import FULL, for_each

SEEDS = range(1000 if FULL else 20)
FEW_SEEDS = range(1000 if FULL else 5)
WINDOWS = WindowConfig()
REVERSAL_SECONDS = 600.0


def load_shape(rng: random.Random, base: float) -> Callable[[float], float]:
    """Return a load that changes: a step, a ramp, a burst or several, a day in an hour, an oscillation."""
    start, factor = rng.uniform(50, 500), rng.uniform(2, 10)
    period, length = rng.choice([40, 150, 500, 3600]), rng.uniform(10, 300)
    return rng.choice([
        lambda s: base * (factor if s > start else 1),
        lambda s: base * (1 + (factor - 1) * min(1.0, max(0.0, s - start) / length)),
        lambda s: base * (factor if start < s < start + length else 1),
        lambda s: base * factor * (0.55 - 0.45 * math.cos(2 * math.pi * s / 3600)),
        lambda s: base * factor * (0.5 + 0.5 * math.sin(2 * math.pi * s / period)),
        lambda s: 0.0 if start < s < start + length else base,
        lambda s: base * (factor if s % 550 < 80 else 0.1),  # it comes back while replicas still drain
        lambda s: base * (factor if s % 620 < 80 else 0.1),
    ])  # fmt: skip


def random_config(rng: random.Random) -> AutoscalerConfig:
    """Return a configuration with some of the limits."""
    max_replicas = rng.choice([1, 3, 10, 40])
    prices = {"": rng.choice([1.0, 2.5]), "large": 7.0}
    limits = (StepLimit(num_replicas=2, period_seconds=30), StepLimit(ratio=0.5, period_seconds=60))
    min_replicas = rng.choice([0, 1, min(2, max_replicas)])
    return AutoscalerConfig(
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        interval_seconds=rng.choice([2.0, 5.0]),
        budget=BudgetConfig(cost_per_hour=rng.choice([None, prices[""] * max(2, min_replicas) + 3]), prices=prices),
        idle_seconds=rng.choice([30.0, 120.0]),
        schedules=rng.choice([(), (Schedule(start="*/20 * * * *", end="10-59/20 * * * *", replicas=3),)]),
        growth_limits=rng.choice([(), limits]),
        shrink_limits=rng.choice([(), limits]),
    )


def random_plant(rng: random.Random, config: AutoscalerConfig, seed: int) -> Plant:
    """Return a pool of a random kind."""
    return Plant(
        config,
        seed=seed,
        service_seconds=rng.choice([1.0, 8.0, 30.0]),
        max_running=rng.choice([4.0, 16.0, 64.0]),
        cold_start_seconds=rng.choice([5.0, 40.0, 120.0]),
        drain_seconds=rng.choice([10.0, 200.0]),
        num_replicas=min(config.max_replicas, rng.choice([1, 2])),
    )


def check_tick(tick: Tick, plant: Plant) -> None:
    """Check what holds for every decision."""
    decision, config = tick.decision, plant.config
    num_live, limit = tick.num_ready + tick.num_starting, config.budget.cost_per_hour
    assert decision.current == num_live
    assert decision.target <= config.max_replicas
    assert len(decision.remove) == len(set(decision.remove)) == max(0, num_live - decision.target)
    if decision.target > num_live:
        assert decision.target + tick.num_draining <= config.max_replicas
        assert limit is None or decision.cost_per_hour <= limit * 1.0001
    assert list(tick.removed_states) == sorted(tick.removed_states, key=lambda state: state is READY)
    if READY in tick.removed_states:
        assert tick.removed_states.count(STARTING) == tick.num_starting
    if decision.target < num_live and not {"max_replicas", "cost_per_hour"} & set(decision.limits):
        assert not decision.is_panic
        assert decision.reason in {"shrink", "idle"}
    if decision.target < config.min_replicas:
        assert decision.limits, "only a limit keeps a pool below its fewest replicas"


@pytest.mark.share(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_decision_keeps_the_rules_under_changing_loads_and_faults(seed: int) -> None:
    rng = random.Random(seed)
    config = random_config(rng)
    plant = random_plant(rng, config, seed)
    base = rng.uniform(0.2, 3) * plant.max_running * 0.7 / plant.service_seconds
    rate_at, interval = load_shape(rng, base), config.interval_seconds
    blind_from = rng.uniform(200, 900)
    blind_share = rng.choice([0.0, 0.5, 1.0])
    plant.reports = lambda at, _: not (blind_from < at - 1000 < blind_from + 100 and rng.random() < blind_share)
    while (elapsed := plant.now - 1000) < 1500:
        if rng.random() < 0.01:
            plant.kill(rng.choice([1, 3]))
        if rng.random() < 0.005:
            plant.advance(rate_at(elapsed), rng.choice([20.0, 90.0, 400.0]))  # the controller stood still
        tick = plant.step(rate_at(elapsed))
        check_tick(tick, plant)
        if (
            blind_share == 1.0
            and blind_from + WINDOWS.panic_seconds + 2 * interval < tick.at_seconds - 1000 < blind_from + 100
        ):
            budget_names = {"max_replicas", "cost_per_hour"}
            assert tick.decision.target >= tick.decision.current or budget_names & set(tick.decision.limits)


BUDGETS = {
    "max_replicas": {"max_replicas": 3},
    "cost_per_hour": {"max_replicas": 9, "budget": BudgetConfig(cost_per_hour=3.0, prices={"": 1.0})},
}


@pytest.mark.parametrize("name", BUDGETS)
def test_replicas_that_drain_take_part_of_the_budget(name: str) -> None:
    plant = Plant(AutoscalerConfig(interval_seconds=5.0, **BUDGETS[name]), drain_seconds=200.0)
    ticks = plant.run(lambda s: 5.0 if s % 550 < 80 else 0.2, 1300)
    assert any(tick.num_draining and tick.decision.limits == (name,) for tick in ticks[100:])
    assert max(tick.decision.target + tick.num_draining for tick in ticks if tick.decision.has_change) <= 3


def test_replicas_without_data_keep_their_places() -> None:
    plant = Plant(AutoscalerConfig(max_replicas=9, interval_seconds=5.0), num_replicas=6)
    plant.reports = lambda _, number: number <= 3
    plant.run(lambda _: 0.1, 700)
    assert plant.ticks[-1].decision.target == 4, "three without data, with headroom"
    plant.reports = lambda _, number: True
    plant.run(lambda _: 0.1, 700)
    assert plant.ticks[-1].decision.target == 1


def noise(rng: random.Random) -> Callable[[float], float]:
    """Return a factor of 1 ± 20 %: another one each interval, every 10 to 60 seconds, or one that drifts."""
    period, keep = rng.choice([1, 10, 30, 60]), rng.choice([0.5, 0.9, 0.97])
    parts: dict[int, float] = {}
    drift = [0.0]

    def drifting(_: float) -> float:
        drift[0] = keep * drift[0] + math.sqrt(1 - keep * keep) * rng.gauss(0, 0.1)
        return 1 + max(-0.2, min(0.2, drift[0]))

    return rng.choice([lambda s: 1 + parts.setdefault(int(s // period), rng.uniform(-0.2, 0.2)), drifting])


def wave(rng: random.Random) -> Callable[[float], float]:
    """Return a factor of 1 ± 20 % that rises and falls slowly."""
    period, phase = rng.uniform(60, 2400), rng.uniform(0, 6)
    return rng.choice([
        lambda s: 1 + 0.2 * math.sin(2 * math.pi * s / period + phase),
        lambda s: 1.2 if (s + phase * 100) % period < period / 2 else 0.8,
    ])  # fmt: skip


def settled_run(rng: random.Random, factor: Callable[[float], float], seed: int) -> list[Tick]:
    """Return the ticks of 40 minutes of a constant load times a factor, after the pool has found its size."""
    plant = random_plant(rng, AutoscalerConfig(max_replicas=60, interval_seconds=5.0), seed)
    rate = rng.uniform(0.5, 15) * plant.max_running * 0.7 / plant.service_seconds
    plant.run(lambda seconds: rate * factor(seconds), 1200)
    return plant.run(lambda seconds: rate * factor(seconds + 1200), 2400)


@pytest.mark.full
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_constant_load_with_noise_reverses_at_most_once_in_ten_minutes(seed: int) -> None:
    rng = random.Random(seed)
    times = reversals(settled_run(rng, noise(rng), seed))
    assert all(later - earlier >= REVERSAL_SECONDS for earlier, later in pairwise(times)), times


@pytest.mark.share(1)
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_slow_wave_of_a_fifth_reverses_at_most_once_in_ten_minutes_on_average(seed: int) -> None:
    rng = random.Random(seed)
    times = reversals(settled_run(rng, wave(rng), seed))
    assert len(times) <= 2400 / REVERSAL_SECONDS, times


@for_each("seed", SEEDS)
def test_after_a_burst_the_target_is_right_within_two_panic_windows(seed: int) -> None:
    rng = random.Random(seed)
    plant = random_plant(rng, AutoscalerConfig(max_replicas=500), seed)
    factor = rng.uniform(4, 10)
    num_arrivals = factor * WINDOWS.panic_seconds * plant.max_running * 0.7 / plant.service_seconds
    plant.add_ready(max(rng.randrange(4, 10), math.ceil(30 / num_arrivals)))  # fewer requests may come by chance
    rate = rng.uniform(0.8, 1.0) * len(plant.replicas) * plant.max_running * 0.7 / plant.service_seconds
    plant.run(lambda _: rate, 120)
    ticks = plant.run(lambda _: rate * factor, 2 * WINDOWS.panic_seconds)
    target, need = ticks[-1].decision.target, num_needed(rate * factor, plant)
    assert target * plant.max_running >= rate * factor * plant.service_seconds, "it holds the load"
    assert target <= 1.6 * need + 1, (need, ticks[-1].decision)


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_real_zero_scales_down_and_a_held_request_wakes_the_pool(seed: int) -> None:
    rng = random.Random(seed)
    plant = random_plant(rng, AutoscalerConfig(min_replicas=0, max_replicas=20, idle_seconds=900.0), seed)
    plant.service_seconds = rng.uniform(1, 8)
    rate = rng.uniform(1, 5) * plant.max_running * 0.7 / plant.service_seconds
    plant.run(lambda _: rate, 300)
    assert plant.ticks[-1].decision.target >= 1
    seconds = WINDOWS.stabilisation_seconds + WINDOWS.stable_seconds + 30 * plant.service_seconds
    plant.run(lambda _: 0.0, seconds)
    assert plant.ticks[-1].decision.target == 1
    plant.run(lambda _: 0.0, 900.0)
    assert plant.ticks[-1].decision.target == 0
    assert plant.step(0.1).decision.target == 1
    assert plant.ticks[-1].decision.reason == "wake"
