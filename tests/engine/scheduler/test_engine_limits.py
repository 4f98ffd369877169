"""EngineLimits: decide_limits raises one at once and lowers it after a slow step; LimitsConfig: the bounds."""

from dataclasses import replace
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.engine_limits import EngineLimits, LimitsConfig
from support_engine import EngineHarness
from support_limits import CONFIG, HALF, HIGHEST, LOWEST, decide
from support_shares import for_each

TARGET = replace(CONFIG, target_itl_ms=50.0)


@for_each(
    ("config", "fields", "changes", "reason"),
    [
        (CONFIG, {"running": 95, "waiting": 13}, {"max_running_requests": 120}, "13 requests wait and 95 run"),
        (CONFIG, {"running": 100, "waiting": 900}, {"max_running_requests": 200}, "900 requests wait and 100 run"),
        (CONFIG, {"running": 100}, {}, ""),
        (CONFIG, {"running": 85, "waiting": 50}, {"num_blocks": 10_000}, "50 requests wait while only 85 run"),
        (TARGET, {"running": 100, "waiting": 900, "step_ms": 40.0}, {"max_running_requests": 112}, "900 requests wait"),
        (TARGET, {"running": 100, "waiting": 900, "step_ms": 49.0}, {}, ""),
        (TARGET, {"running": 100, "step_ms": 60.0}, {"max_running_requests": 80},
         "a step takes 60.0 ms, the target is 50 ms"),
        (TARGET, {"running": 100, "step_ms": 51.0}, {"max_running_requests": 89}, "a step takes 51.0 ms"),
        (CONFIG, {"running": 100, "step_ms": 500.0}, {}, ""),
        (CONFIG, {"tokens": 950}, {"max_batch_tokens": 2000}, "a step had 950 tokens"),
        (TARGET, {"tokens": 1000, "step_ms": 40.0}, {"max_batch_tokens": 1125}, "a step had 1000 tokens"),
        (TARGET, {"tokens": 1000, "step_ms": 60.0, "has_prefill": True}, {"max_batch_tokens": 800}, "a step takes 60"),
        (CONFIG, {"blocks": 4500}, {"num_blocks": 10_000}, "4500 blocks were in use, with 0 preemptions"),
        (CONFIG, {"preemptions": 3}, {"num_blocks": 10_000}, "4000 blocks were in use, with 3 preemptions"),
        (CONFIG, {"running": 80, "waiting": 1}, {"num_blocks": 10_000}, "1 requests wait while only 80 run"),
        (CONFIG, {"running": 10, "blocks": 400, "waiting": 490}, {"num_blocks": HIGHEST.num_blocks}, "490 requests"),
    ],
)  # fmt: skip
def test_a_limit_rises_at_once_and_a_slow_step_lowers_it(
    config: LimitsConfig, fields: dict[str, Any], changes: dict[str, int], reason: str
) -> None:
    decision = decide(config, seconds=1, **fields)
    assert decision.limits == replace(HALF, **changes) and set(decision.reasons) == set(changes)
    assert all(text.startswith(reason) for text in decision.reasons.values())


def test_the_bounds_of_an_engine_are_its_settings_and_one_longest_request() -> None:
    harness = EngineHarness(FakeConfig(num_blocks=40, block_size=4, max_model_len=64), max_running_requests=6)
    config = LimitsConfig.of(harness.scheduler.config, harness.scheduler.limits)
    assert config.highest == EngineLimits(max_running_requests=6, max_batch_tokens=2048, num_blocks=40)
    assert config.lowest == EngineLimits(max_running_requests=6, max_batch_tokens=256, num_blocks=16)
    with pytest.raises(ConfigError, match="the lowest num_blocks is 20000, the highest 10000"):
        replace(CONFIG, lowest=replace(LOWEST, num_blocks=20_000))
    with pytest.raises(ConfigError, match="min_running_requests must be at least 1, got 0"):
        SchedulerConfig(min_running_requests=0)
    harness.close()


def test_a_model_without_blocks_has_bounds_too() -> None:
    fake = FakeConfig(windows=(), num_blocks=1, has_state=True)
    harness = EngineHarness(fake, max_running_requests=6)
    config = LimitsConfig.of(harness.scheduler.config, harness.scheduler.limits)
    assert config.lowest.num_blocks == config.highest.num_blocks == 1
    harness.close()
