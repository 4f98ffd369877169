"""Registry of the rules: which ones a configuration turns on, by name."""

from collections.abc import Mapping
from functools import lru_cache

from chairlift.autoscaler.config import TargetConfig, WindowConfig, normal_wait_seconds
from chairlift.autoscaler.limits.headroom import need_that_fits_half
from chairlift.autoscaler.rules.base import Rule
from chairlift.autoscaler.rules.concurrency import ConcurrencyRule
from chairlift.autoscaler.rules.expected_wait import ExpectedWaitRule
from chairlift.autoscaler.rules.external_metric import ExternalRule
from chairlift.autoscaler.rules.latency import LatencyRule
from chairlift.autoscaler.rules.utilisation import UtilisationRule


@lru_cache(maxsize=64)
def build_rules(targets: TargetConfig, windows: WindowConfig) -> Mapping[str, Rule]:
    """Return the rules that have a target."""
    min_factor = need_that_fits_half(margin=windows.shrink_margin, tolerance=windows.tolerance)
    wait = normal_wait_seconds(targets)
    rules: dict[str, Rule] = {}
    if targets.wait_seconds is not None:
        rules["expected_wait"] = ExpectedWaitRule(targets.wait_seconds)
    if targets.concurrency is not None or targets.concurrency_ratio is not None:
        rules["concurrency"] = ConcurrencyRule(
            ratio=targets.concurrency_ratio, concurrency=targets.concurrency, wait_seconds=wait
        )
    for name, usage in (
        ("kv_usage", targets.kv_usage_ratio), ("cpu", targets.cpu_ratio), ("memory", targets.memory_ratio),
        ("gpu", targets.gpu_ratio),
    ):  # fmt: skip
        if usage is not None:
            rules[name] = UtilisationRule(f"{name}_ratio", usage, wait_seconds=wait, counts_backlog=name != "memory")
    for name, slo in (("ttft", targets.ttft_seconds), ("itl", targets.itl_seconds)):
        if slo is not None:
            rules[name] = LatencyRule(f"{name}_seconds", slo, min_factor=min_factor)
    for each in targets.external:
        rules[f"external:{each.name}"] = ExternalRule(each.name, each.target, is_ratio=each.is_ratio)
    return rules
