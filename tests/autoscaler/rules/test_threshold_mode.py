"""Threshold mode: any value above its bound all the time, or all values below theirs."""

from chairlift.autoscaler.config import ThresholdConfig
from chairlift.autoscaler.pool_load import pool_load
from chairlift.autoscaler.rules.threshold_mode import evaluate_thresholds
from support_autoscaler import STARTING, pool, ready, silent

CONFIG = ThresholdConfig(cpu_high=0.7, cpu_low=0.3, queue_high=10.0, queue_low=1.0)


def desired(*loads: dict[str, float | None]) -> dict[str, float | None]:
    samples = [pool_load(pool(index, ready("a", **load))) for index, load in enumerate(loads)]
    return {name: each.desired for name, each in evaluate_thresholds(CONFIG, samples[-1], samples, samples, 3).items()}


def test_a_value_has_to_be_beyond_its_bound_all_the_time() -> None:
    assert desired({"cpu_ratio": 0.9}, {"cpu_ratio": 0.8}) == {"cpu": 4.0, "queue": 2.0}
    assert desired({"cpu_ratio": 0.9}, {"cpu_ratio": 0.6}, {"cpu_ratio": 0.9})["cpu"] == 3.0
    assert desired({"cpu_ratio": 0.1}, {"cpu_ratio": 0.2})["cpu"] == 2.0
    assert desired({"cpu_ratio": 0.1}, {"cpu_ratio": 0.4})["cpu"] == 3.0
    assert desired({"cpu_ratio": 0.5, "waiting_requests": 11.0})["queue"] == 4.0


def test_missing_values_hold() -> None:
    assert desired({"cpu_ratio": None})["cpu"] is None
    assert desired({"cpu_ratio": None}, {"cpu_ratio": 0.1})["cpu"] == 3.0
    partial = [pool_load(pool(0, ready("a", cpu_ratio=0.9), silent("b")))]
    assert evaluate_thresholds(CONFIG, partial[-1], partial, partial, 3)["cpu"].desired == 4.0
    low = [pool_load(pool(0, ready("a", cpu_ratio=0.1), silent("b")))]
    assert evaluate_thresholds(CONFIG, low[-1], low, low, 3)["cpu"].desired == 3.0
    none = [pool_load(pool(0, silent("a", STARTING)))]
    assert evaluate_thresholds(CONFIG, none[-1], none, none, 1)["cpu"].desired is None
    assert evaluate_thresholds(CONFIG, partial[-1], (), (), 3)["cpu"].desired == 3.0, "the time is not over yet"


def test_held_requests_are_in_the_queue() -> None:
    loads = [pool_load(pool(0, ready("a", cpu_ratio=0.5, waiting_requests=6.0), held_requests=5.0))]
    assert evaluate_thresholds(CONFIG, loads[-1], loads, loads, 3)["queue"].desired == 4.0
