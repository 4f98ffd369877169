"""AutoscalerConfig: what is refused, and prices of unknown types."""

from collections.abc import Callable

import pytest

from chairlift.autoscaler.config import (
    AutoscalerConfig,
    BudgetConfig,
    ExternalTarget,
    StepLimit,
    TargetConfig,
    ThresholdConfig,
    WindowConfig,
    normal_wait_seconds,
)  # fmt: skip
from chairlift.core.errors import ConfigError
from support_shares import for_each

INF = float("inf")


@for_each(
    ("build", "message"),
    [
        (lambda: AutoscalerConfig(min_replicas=-1), "min_replicas must be at least 0, got -1"),
        (lambda: AutoscalerConfig(max_replicas=0), "max_replicas must be above 0, got 0"),
        (lambda: AutoscalerConfig(min_replicas=5, max_replicas=4), r"at most max_replicas \(4\), got 5"),
        (lambda: AutoscalerConfig(interval_seconds=0), "interval_seconds must be above 0"),
        (lambda: AutoscalerConfig(interval_seconds=40), "interval_seconds must be above 0 and at most 30, got 40"),
        (lambda: AutoscalerConfig(idle_seconds=-1), "idle_seconds must be at least 0"),
        (lambda: AutoscalerConfig(sample_timeout_seconds=INF), "sample_timeout_seconds must be above 0, got inf"),
        (lambda: TargetConfig(wait_seconds=0), "wait_seconds must be above 0"),
        (lambda: TargetConfig(cpu_ratio=1.5), "cpu_ratio must be above 0 and at most 1, got 1.5"),
        (lambda: TargetConfig(external=(ExternalTarget(name="a", target=1),) * 2), "must differ, got a, a"),
        (lambda: ExternalTarget(name="a", target=0), "target of the external metric 'a' must be above 0"),
        (lambda: WindowConfig(panic_seconds=90), r"at most stable_seconds \(60\), got 90"),
        (lambda: WindowConfig(panic_factor=1.0), "panic_factor must be above 1"),
        (lambda: WindowConfig(tolerance=-0.1), "tolerance must be at least 0"),
        (StepLimit, "needs num_replicas or ratio above 0"),
        (lambda: ThresholdConfig(cpu_high=0.2), "cpu_low must be below cpu_high, got 0.3 and 0.2"),
        (lambda: ThresholdConfig(queue_high=None), "queue_low must be below queue_high, got 1.0 and None"),
        (lambda: BudgetConfig(cost_per_hour=1.0), "cost_per_hour needs a price of replica type ''"),
        (lambda: BudgetConfig(prices={"a": -1.0}), "price of replica type 'a' must be at least 0"),
        (lambda: AutoscalerConfig(min_replicas=3, budget=BudgetConfig(cost_per_hour=5.0, prices={"": 2.0})),
         "3 replicas cost 6 per hour, the limit is 5"),
    ],
)  # fmt: skip
def test_what_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_the_price_of_an_unknown_type_is_the_highest() -> None:
    budget = BudgetConfig(prices={"a": 1.0, "b": 3.0})
    assert [budget.price(each) for each in ("a", "b", "c")] == [1.0, 3.0, 3.0]
    assert BudgetConfig().price("c") == 0.0


def test_a_wait_is_normal_up_to_its_target() -> None:
    assert normal_wait_seconds(TargetConfig(wait_seconds=3.0)) == 3.0
    assert normal_wait_seconds(TargetConfig(wait_seconds=None)) == 1.0
