"""EngineLimits, LimitsConfig: limits of requests, tokens and blocks that the scheduler may use."""

from dataclasses import dataclass, fields

from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.request_limits import RequestLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What the scheduler may use.

    Attributes:
        max_running_requests: sequences that run at once.
        max_batch_tokens: tokens of a step.
        num_blocks: blocks of the pool that are handed out.
    """

    max_running_requests: int
    max_batch_tokens: int
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Bounds and targets of the decision.

    Attributes:
        lowest: lower bounds.
        highest: upper bounds, which hold at the start.
        target_itl_ms: milliseconds that a step with decoding requests should take; None for no target.
        window: seconds of samples that count.
        interval: seconds of one sample.
        target: utilization that a changed limit aims at.
        low: utilization below which a limit falls.

    Raises ConfigError when a lower bound is above its upper one.
    """

    lowest: EngineLimits
    highest: EngineLimits
    target_itl_ms: float | None = None
    window: float = 10.0
    interval: float = 1.0
    target: float = 0.9
    low: float = 0.7

    def __post_init__(self) -> None:
        for name in NAMES:
            low, high = getattr(self.lowest, name), getattr(self.highest, name)
            if not 1 <= low <= high:
                raise ConfigError(f"the lowest {name} is {low}, the highest {high}", option=name)

    @classmethod
    def of(cls, config: SchedulerConfig, limits: RequestLimits) -> "LimitsConfig":
        """Return the bounds of an engine: its settings above, and one sequence of the longest request below."""
        highest = EngineLimits(
            max_running_requests=config.max_running_sequences, max_batch_tokens=config.max_batch_tokens,
            num_blocks=limits.num_blocks,
        )  # fmt: skip
        longest = max(1, limits.blocks_needed(min(limits.max_model_len, limits.max_cached_tokens)))
        lowest = EngineLimits(
            max_running_requests=min(config.min_running_requests, highest.max_running_requests),
            max_batch_tokens=min(config.min_batch_tokens, highest.max_batch_tokens),
            num_blocks=min(longest, highest.num_blocks),
        )  # fmt: skip
        return cls(lowest=lowest, highest=highest, target_itl_ms=config.target_itl_ms)


NAMES = tuple(field.name for field in fields(EngineLimits))
