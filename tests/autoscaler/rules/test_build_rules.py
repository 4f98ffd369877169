"""Registry: a rule is on if it has a target."""

from chairlift.autoscaler.config import ExternalTarget, TargetConfig, WindowConfig
from chairlift.autoscaler.rules.build_rules import build_rules


def test_the_default_rules() -> None:
    assert list(build_rules(TargetConfig(), WindowConfig())) == ["expected_wait", "concurrency", "kv_usage"]


def test_every_target_turns_its_rule_on() -> None:
    none = TargetConfig(wait_seconds=None, concurrency_ratio=None, kv_usage_ratio=None)
    assert build_rules(none, WindowConfig()) == {}
    every = TargetConfig(
        ttft_seconds=1.0, itl_seconds=0.1, cpu_ratio=0.7, memory_ratio=0.7, gpu_ratio=0.7,
        external=(ExternalTarget(name="lag", target=5.0),),
    )  # fmt: skip
    assert set(build_rules(every, WindowConfig())) == {
        "expected_wait", "concurrency", "kv_usage", "cpu", "memory", "gpu", "ttft", "itl", "external:lag",
    }  # fmt: skip
    assert list(build_rules(TargetConfig(wait_seconds=None, kv_usage_ratio=None, concurrency=3.0), WindowConfig())) == [
        "concurrency"
    ]
