"""autoscaler_config: every setting reaches its field, defaults are those of the help, and errors name the setting."""

from dataclasses import replace
from typing import Any

import pytest

from chairlift.autoscaler.config import AutoscalerConfig, StepLimit, ThresholdConfig
from chairlift.autoscaler.limits.schedule import Schedule
from chairlift.cli import autoscaler_options
from chairlift.cli.autoscaler_options import autoscaler_config
from chairlift.cli.settings.fleet_settings import AUTOSCALER, FLEET
from chairlift.core.errors import ConfigError
from support_fleet_settings import VALUES
from support_shares import for_each


def test_every_setting_of_the_autoscaler_reaches_its_field() -> None:
    config = autoscaler_config(VALUES)
    assert (config.min_replicas, config.max_replicas, config.interval_seconds) == (2, 9, 1.5)
    assert (config.idle_seconds, config.cold_start_seconds, config.is_dry_run) == (50.0, 12.0, True)
    targets, windows, budget = config.targets, config.windows, config.budget
    assert (targets.wait_seconds, targets.concurrency, targets.kv_usage_ratio) == (3.0, 11.0, 0.5)
    assert (targets.ttft_seconds, targets.itl_seconds) == (0.9, 0.08)
    assert (targets.cpu_ratio, targets.memory_ratio, targets.gpu_ratio) == (0.6, 0.7, 0.75)
    assert (windows.stable_seconds, windows.panic_seconds) == (40.0, 4.0)
    assert (windows.stabilisation_seconds, windows.reversal_seconds) == (100.0, 200.0)
    assert (budget.cost_per_hour, budget.prices, budget.replica_type) == (30.0, {"big": 3.0}, "big")
    start, end = "0 8 * * 1-5", "0 18 * * 1-5"
    assert config.schedules == (Schedule(start=start, end=end, replicas=3, time_zone="Europe/Berlin"),)
    assert config.thresholds is not None and autoscaler_config({}).thresholds is None


def test_defaults_are_those_that_the_help_shows() -> None:
    shown = {setting.name: setting.default for setting in AUTOSCALER} | {each.name: each.default for each in FLEET}
    given = {name: value for name, value in shown.items() if value != "" and name in VALUES}
    assert autoscaler_config(given) == replace(autoscaler_config({}), budget=autoscaler_config(given).budget)
    assert autoscaler_config({}).targets == AutoscalerConfig().targets


@for_each(("options", "message"), [
    ({"min_replicas": 5, "max_replicas": 4}, "min_replicas must be at most max_replicas (4), got 5"),
    ({"max_replicas": 0}, "max_replicas must be above 0, got 0"),
    ({"target_wait": 0.0}, "target_wait must be above 0, got 0"),
    ({"target_cpu": 1.5}, "target_cpu must be above 0 and at most 1, got 1.5"),
    ({"panic_window": 70.0}, "panic_window must be at most stable_seconds (60), got 70"),
    ({"scale_interval": 0.0}, "scale_interval must be above 0"),
    ({"max_cost_per_hour": 3.0}, "max_cost_per_hour needs a price"),
    ({"schedule": ["0 8 * * *"]}, "schedule '0 8 * * *' must be START;END;N"),
    ({"schedule": ["0 8 * *;0 9 * * *;1"]}, "schedule '0 8 * *;0 9 * * *;1': "),
    ({"schedule": ["0 8 * * *;0 9 * * *;1;Mars"]}, "schedule '0 8 * * *;0 9 * * *;1;Mars': time zone 'Mars'"),
])  # fmt: skip
def test_an_error_of_the_autoscaler_names_its_setting(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        autoscaler_config(options)
    assert caught.value.message.startswith(message), caught.value.message
    assert caught.value.details["option"] == message.partition(" ")[0]


@for_each(
    ("name", "value"),
    [
        ("slo_quantile", 95.0), ("slo_quantile", 0.0), ("slo_quantile", float("nan")), ("replica_start_timeout", 0.0),
        ("replica_unresponsive_timeout", 0.0), ("replica_drain_timeout", -5.0), ("replica_cpus", -1),
        ("replica_gpus", -1),
    ],
)  # fmt: skip
def test_a_value_out_of_its_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        autoscaler_config({name: value})


def test_thresholds_and_step_limits() -> None:
    given = {
        "scaling": "threshold", "threshold_cpu": "off", "threshold_memory": "0.4:0.9", "threshold_queue": "2:8",
        "scale_up_limit": ["4/60", "0.5x/30"], "scale_down_limit": ["1/300"], "target_gpu": 0.6,
    }  # fmt: skip
    config = autoscaler_config(given)
    assert config.thresholds == ThresholdConfig(
        cpu_low=None, cpu_high=None, memory_low=0.4, memory_high=0.9, queue_low=2.0, queue_high=8.0
    )
    assert config.growth_limits == (StepLimit(num_replicas=4), StepLimit(ratio=0.5, period_seconds=30.0))
    assert config.shrink_limits == (StepLimit(num_replicas=1, period_seconds=300.0),)
    assert config.targets.gpu_ratio == 0.6
    assert autoscaler_config({"scaling": "threshold"}).thresholds == ThresholdConfig()


@for_each(
    ("name", "value"),
    [
        ("threshold_cpu", "0.5"), ("threshold_queue", "9:1"), ("threshold_memory", "a:b"), ("scale_up_limit", ["4"]),
        ("scale_up_limit", ["x/60"]), ("scale_down_limit", ["0/60"]), ("scale_down_limit", ["1/0"]),
    ],
)  # fmt: skip
def test_a_threshold_or_limit_that_is_not_valid_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        autoscaler_config({"scaling": "threshold", name: value})


def test_a_pool_that_nothing_could_wake_does_not_go_to_zero() -> None:
    with pytest.raises(ConfigError, match="min_replicas 0 needs a query held_requests"):
        autoscaler_options.check_wake_signal(autoscaler_config({"min_replicas": 0}), {"queue": "x"})
    autoscaler_options.check_wake_signal(autoscaler_config({"min_replicas": 0}), {"held_requests": "x"})
    autoscaler_options.check_wake_signal(autoscaler_config({}), {})
