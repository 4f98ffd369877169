"""UtilisationRule: use against target, and the demand where the use is at its end."""

import pytest

from chairlift.autoscaler.rules.utilisation import UtilisationRule
from support_autoscaler import STARTING, pool, replicas_of, silent, window_of

KV = UtilisationRule("kv_usage_ratio", 0.8, wait_seconds=1.0)


def test_the_need_is_the_use_by_its_target() -> None:
    assert KV.evaluate(window_of(pool(0, *replicas_of(4, kv_usage_ratio=0.4)))).desired == pytest.approx(2.0)
    assert KV.evaluate(window_of(pool(0, *replicas_of(4, kv_usage_ratio=0.0)))).desired == 0.0


@pytest.mark.parametrize(("num_waiting", "need"), [(0.0, 5.0), (5.0, 10.0), (50.0, 55.0)])
def test_the_need_grows_with_the_queue_where_the_use_cannot(num_waiting: float, need: float) -> None:
    load = {"kv_usage_ratio": 1.0, "running_requests": 5.0, "waiting_requests": num_waiting}
    assert KV.evaluate(window_of(pool(0, *replicas_of(4, **load)))).desired == pytest.approx(need)


def test_a_queue_does_not_count_below_the_target_or_for_memory() -> None:
    load = {"kv_usage_ratio": 0.4, "memory_ratio": 1.0, "running_requests": 5.0, "waiting_requests": 50.0}
    window = window_of(pool(0, *replicas_of(4, **load)))
    assert KV.evaluate(window).desired == pytest.approx(2.0)
    memory = UtilisationRule("memory_ratio", 0.8, wait_seconds=1.0, counts_backlog=False)
    assert memory.evaluate(window).desired == pytest.approx(5.0)


def test_missing_use() -> None:
    assert KV.evaluate(window_of(pool(0, silent("a")))).desired is None
    assert KV.evaluate(window_of(pool(0, silent("a", STARTING)))).desired is None
    assert KV.evaluate(window_of(pool(0, *replicas_of(1, kv_usage_ratio=0.0), silent("a")))).desired == 1.0
