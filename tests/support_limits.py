"""decide: the decision on limits after equal samples; the limits and samples that it begins with."""

from dataclasses import replace
from typing import Any

from chairlift.engine.scheduler.engine_limits import EngineLimits, LimitsConfig
from chairlift.engine.scheduler.limit_tuner import LimitSample, LimitsDecision, decide_limits

LOWEST = EngineLimits(max_running_requests=4, max_batch_tokens=64, num_blocks=100)
HIGHEST = EngineLimits(max_running_requests=256, max_batch_tokens=2048, num_blocks=10_000)
CONFIG = LimitsConfig(lowest=LOWEST, highest=HIGHEST)
NOW = 100.0
HALF = EngineLimits(max_running_requests=100, max_batch_tokens=1000, num_blocks=5000)
STEADY = LimitSample(
    at=NOW, limits=HALF, running=80, waiting=0, tokens=800, blocks=4000, step_ms=20.0, has_prefill=False, preemptions=0
)  # fmt: skip
"""A sample that uses 80 % of each limit."""


def decide(config: LimitsConfig = CONFIG, *, seconds: int = 10, before: Any = None, **fields: Any) -> LimitsDecision:
    """Decide after `seconds` equal samples; `before` changes those before the last."""
    last = replace(STEADY, **fields)
    older = replace(last, **(before or {}))
    samples = [replace(older, at=NOW - age) for age in range(seconds - 1, 0, -1)]
    return decide_limits([*samples, last], config, NOW)
