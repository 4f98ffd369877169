"""What an engine is told before it starts: two small frozen parts, one for the line, one for the cache."""

from dataclasses import dataclass, field, replace
from math import inf

from chairlift.core.errors import ConfigError


def _at_least(low: int, **options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < low:
            raise ConfigError(f"{name} must be at least {low}, got {value}", option=name)


def _positive(**options: float | None) -> None:
    for name, value in options.items():
        if value is not None and not 0 < value < inf:
            raise ConfigError(f"{name} must be a positive number, got {value}", option=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step and of the line.

    Attributes:
        max_batch_tokens: tokens in one step, generated and prefilled ones together.
        max_running_requests: requests that hold blocks at once.
        max_prefill_tokens: prompt tokens in one step; None is what the runner likes best (RunnerInfo.chunk_tokens),
            or else whatever max_batch_tokens leaves.
        long_prefill_threshold: prompt tokens of one request in one step while others want some too; None is a
            quarter of the step's prompt tokens, or the whole rest of a prompt that half of them finish, and all that
            the oldest leaves where nobody in line wants less (policy "fifo"). A request alone may take them all.
        max_chunk_tokens: hard bound on the prompt tokens of one request in one step; None for no bound.
        max_queue_size: requests in line; one more is refused with QueueFull.
        max_model_len: prompt and output tokens of one request; None is the model's own limit.
        policy: order of the line, a name of policy.py.
        batching: how a step's budget is shared, a name of batching.py.
        safety_margin: share of free blocks below which only generating requests ride (batching "fifo" only).
        overlap: two launches in flight.
        max_bypass: how many smaller requests may pass one that does not fit, in its whole life.
        prefix_wait_steps: how many steps a request waits for blocks that another one is computing.
        protect_after_preemptions: preemptions after which a request is a victim only when no other is left.
        priority_ageing: seconds of waiting that are worth one step of priority (policy "priority").
        tenant_weights: share of service of each tenant, 1 where none is given (policy "fair").
        target_itl_ms: milliseconds that a step in which somebody generates should take; the prompt tokens in it are
            chosen for that from the measured times of the steps before. None for as many as fit.
    """

    max_batch_tokens: int = 2048
    max_running_requests: int = 256
    max_prefill_tokens: int | None = None
    long_prefill_threshold: int | None = None
    max_chunk_tokens: int | None = None
    max_queue_size: int = 100_000
    max_model_len: int | None = None
    policy: str = "fifo"
    batching: str = "mixed"
    safety_margin: float | None = None
    overlap: bool = False
    max_bypass: int = 16
    prefix_wait_steps: int = 256
    protect_after_preemptions: int = 3
    priority_ageing: float = 10.0
    tenant_weights: dict[str, float] = field(default_factory=dict)
    target_itl_ms: float | None = None

    def __post_init__(self) -> None:
        _at_least(
            1, max_batch_tokens=self.max_batch_tokens, max_running_requests=self.max_running_requests,
            max_prefill_tokens=self.max_prefill_tokens, long_prefill_threshold=self.long_prefill_threshold,
            max_chunk_tokens=self.max_chunk_tokens, max_queue_size=self.max_queue_size,
            protect_after_preemptions=self.protect_after_preemptions,
        )  # fmt: skip
        _at_least(2, max_model_len=self.max_model_len)
        _at_least(0, max_bypass=self.max_bypass, prefix_wait_steps=self.prefix_wait_steps)
        _positive(
            priority_ageing=self.priority_ageing, target_itl_ms=self.target_itl_ms,
            **{f"tenant_weights[{tenant!r}]": weight for tenant, weight in self.tenant_weights.items()},
        )  # fmt: skip

    def with_runner_defaults(self, chunk_tokens: int | None) -> "SchedulerConfig":
        """Return these limits for a runner that likes so many prompt tokens in a step; what is set stays."""
        if chunk_tokens is None or self.max_prefill_tokens is not None:
            return self
        return replace(self, max_prefill_tokens=chunk_tokens)

    @property
    def max_in_flight_steps(self) -> int:
        """How many launches may be in flight."""
        return 2 if self.overlap else 1

    @property
    def max_running_sequences(self) -> int:
        """Requests that can ride at once: every one of them may bring a token to each step."""
        return min(self.max_running_requests, self.max_batch_tokens)

    @property
    def prefill_budget(self) -> int:
        """Prompt tokens in one step."""
        return min(self.max_batch_tokens, self.max_prefill_tokens or self.max_batch_tokens)

    @property
    def fair_prefill_chunk(self) -> int:
        """Prompt tokens of one request in one step while others want some."""
        share = self.long_prefill_threshold or max(1, self.prefill_budget // 4)
        return min(share, self.max_prefill_chunk)

    @property
    def final_prefill_chunk(self) -> int:
        """Prompt tokens that one request gets at once, whatever the others want, where they are its last."""
        return (
            self.fair_prefill_chunk
            if self.long_prefill_threshold
            else min(2 * self.fair_prefill_chunk, self.max_prefill_chunk)
        )

    @property
    def may_prefill_sequentially(self) -> bool:
        """Whether prompts may be read one after the other where nobody in line wants less.

        Not where a target leaves prompts less as soon as the first of them is over; other lines have their own reasons.
        """
        return self.policy == "fifo" and self.long_prefill_threshold is None and self.target_itl_ms is None

    @property
    def max_prefill_chunk(self) -> int:
        """Prompt tokens of one request in one step, whatever the others want."""
        return min(self.prefill_budget, self.max_chunk_tokens or self.prefill_budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The pool of KV blocks.

    Attributes:
        num_blocks: pages in the pool; a page is block_size tokens of one layer group.
        block_size: tokens in a page.
        windows: one entry a layer group: None is full attention, else the sliding window in tokens (a token sees
            itself and window - 1 before it).
        enable_prefix_caching: whether full blocks are hashed and shared.
        model_id: part of the hash's root.
    """

    num_blocks: int
    block_size: int = 16
    windows: tuple[int | None, ...] = (None,)
    enable_prefix_caching: bool = True
    model_id: str = ""

    def __post_init__(self) -> None:
        _at_least(1, num_blocks=self.num_blocks, block_size=self.block_size)
        if not self.windows:
            raise ConfigError("a cache needs at least one layer group", option="windows")
        _at_least(1, **{f"windows[{group}]": window for group, window in enumerate(self.windows)})
