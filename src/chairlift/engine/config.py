"""SchedulerConfig and CacheConfig: the settings of an engine's scheduler and of its KV cache."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from chairlift.core.errors import ConfigError

AUTO_LENGTH = "auto"
"""The value of max_model_len for as many tokens as the KV cache holds."""

OFF_METHOD = "none"
"""The method of speculative decoding without drafts."""

AUTO_METHOD = "auto"
"""The method that combines what needs no second model."""

DRAFT_MODEL_METHOD = "draft_model"
"""The method that needs a second model."""


def _at_least(low: int, **options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < low:
            raise ConfigError(f"{name} must be at least {low}, got {value}", option=name)


def _positive(**options: float | None) -> None:
    for name, value in options.items():
        if value is not None and not 0 < value < inf:
            raise ConfigError(f"{name} must be a positive number, got {value}", option=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Settings of speculative decoding, under vLLM's names.

    Attributes:
        method: a name of drafters/registry.py; OFF_METHOD for no drafts.
        model: of method "draft_model": a folder, a GGUF file or a hub id of the draft model; "" for the other methods.
        num_speculative_tokens: most drafts of a sequence in one step.
        prompt_lookup_min: tokens at the end of a sequence that must occur before, so that what followed is proposed.
        prompt_lookup_max: tokens at the end that are looked for first.
        suffix_max_bytes: memory for outputs of earlier requests, of method "suffix" only; the newest ones are kept.
    """

    method: str = OFF_METHOD
    model: str = ""
    num_speculative_tokens: int = 16
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 8
    suffix_max_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        _at_least(
            1, num_speculative_tokens=self.num_speculative_tokens, prompt_lookup_min=self.prompt_lookup_min,
            prompt_lookup_max=self.prompt_lookup_max, suffix_max_bytes=self.suffix_max_bytes,
        )  # fmt: skip
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min must be at most prompt_lookup_max, got {self.prompt_lookup_min} and "
                f"{self.prompt_lookup_max}", option="speculative_config",
            )  # fmt: skip

    @property
    def ngram_sizes(self) -> tuple[int, ...]:
        """The numbers of last tokens that are looked up, the largest first: of the two bounds and one between."""
        between = min(max(3, self.prompt_lookup_min), self.prompt_lookup_max)
        return tuple(sorted({self.prompt_lookup_min, between, self.prompt_lookup_max}, reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step and of the waiting queue.

    Attributes:
        max_batch_tokens: tokens in one step, decoded and prefilled ones together.
        max_running_requests: requests that hold blocks at once.
        max_prefill_tokens: prompt tokens in one step; None is the runner's preference
            (RunnerInfo.preferred_prefill_tokens), or else what max_batch_tokens leaves.
        long_prefill_threshold: prompt tokens of one request in one step while others need some too; None is a
            quarter of the step's prompt tokens, or the whole rest of a prompt that half of them finish, and all that
            the oldest leaves where no waiting request needs less (scheduling_policy "fifo"). A request alone may take
            them all.
        max_chunk_tokens: hard bound on the prompt tokens of one request in one step; None for no bound.
        max_queue_size: sequences in the waiting queue; a request that comes when it is full is rejected with QueueFull.
        max_model_len: prompt and output tokens of one request; None is the model's own limit.
        fits_length_to_cache: a request has at most as many tokens as the KV cache holds; see with_auto_length.
        scheduling_policy: order of the waiting queue, a name of waiting_queue/base.py.
        batching_policy: how a step's budget is shared, a name of batching_policy.py.
        safety_margin: of batching_policy "fifo" only: share of free blocks below which only decoding requests are
            scheduled.
        overlap: two steps in flight; None is True for a runner that is asynchronous, as on a CUDA device.
        max_bypass: how many smaller requests may bypass one that does not fit, in its whole life.
        prefix_wait_steps: steps that a request waits for blocks that another one is computing.
        protect_after_preemptions: preemptions after which a request is a victim only when no other is left.
        priority_ageing: seconds of waiting that are worth one step of priority (scheduling_policy "priority").
        tenant_weights: share of service of each tenant, 1 by default (scheduling_policy "fair").
        target_itl_ms: milliseconds that a step with a decoding request should take; the scheduler bounds its prompt
            tokens by the measured times of earlier steps. None for as many as fit.
        tune_limits: max_running_requests, max_batch_tokens and the blocks in use follow the measured utilization.
        min_running_requests: lower bound of max_running_requests with tune_limits.
        min_batch_tokens: lower bound of max_batch_tokens with tune_limits.
        speculation: how tokens are guessed, so that one step computes several of a sequence.
    """

    max_batch_tokens: int = 2048
    max_running_requests: int = 256
    max_prefill_tokens: int | None = None
    long_prefill_threshold: int | None = None
    max_chunk_tokens: int | None = None
    max_queue_size: int = 100_000
    max_model_len: int | None = None
    fits_length_to_cache: bool = False
    scheduling_policy: str = "fifo"
    batching_policy: str = "mixed"
    safety_margin: float | None = None
    overlap: bool | None = None
    max_bypass: int = 16
    prefix_wait_steps: int = 256
    protect_after_preemptions: int = 3
    priority_ageing: float = 10.0
    tenant_weights: dict[str, float] = field(default_factory=dict)
    target_itl_ms: float | None = None
    tune_limits: bool = False
    min_running_requests: int = 8
    min_batch_tokens: int = 256
    speculation: SpeculationConfig = SpeculationConfig()

    def __post_init__(self) -> None:
        _at_least(
            1, max_batch_tokens=self.max_batch_tokens, max_running_requests=self.max_running_requests,
            max_prefill_tokens=self.max_prefill_tokens, long_prefill_threshold=self.long_prefill_threshold,
            max_chunk_tokens=self.max_chunk_tokens, max_queue_size=self.max_queue_size,
            protect_after_preemptions=self.protect_after_preemptions, min_running_requests=self.min_running_requests,
            min_batch_tokens=self.min_batch_tokens,
        )  # fmt: skip
        _at_least(2, max_model_len=self.max_model_len)
        _at_least(0, max_bypass=self.max_bypass, prefix_wait_steps=self.prefix_wait_steps)
        _positive(
            priority_ageing=self.priority_ageing, target_itl_ms=self.target_itl_ms,
            **{f"tenant_weights[{tenant!r}]": weight for tenant, weight in self.tenant_weights.items()},
        )  # fmt: skip

    def with_runner_defaults(
        self, chunk_tokens: int | None, *, overlap: bool = False, max_running_requests: int | None = None
    ) -> "SchedulerConfig":
        """Return these limits, with the runner's preferred prefill size of a step, and overlap, where none is set.

        max_running_requests: what the runner can hold; None for any number.
        """
        most = self.max_running_requests if max_running_requests is None else max_running_requests
        return replace(
            self, max_prefill_tokens=self.max_prefill_tokens or chunk_tokens,
            overlap=overlap if self.overlap is None else self.overlap,
            max_running_requests=min(self.max_running_requests, most),
            min_running_requests=min(self.min_running_requests, most),
        )  # fmt: skip

    @property
    def max_in_flight_steps(self) -> int:
        """How many steps may be in flight."""
        return 2 if self.overlap else 1

    @property
    def max_running_sequences(self) -> int:
        """Sequences that can run at once: each of them may have a token in each step."""
        return min(self.max_running_requests, self.max_batch_tokens)

    @property
    def prefill_budget(self) -> int:
        """Prompt tokens in one step."""
        return min(self.max_batch_tokens, self.max_prefill_tokens or self.max_batch_tokens)

    @property
    def fair_prefill_chunk(self) -> int:
        """Prompt tokens of one request in one step while others need some."""
        share = self.long_prefill_threshold or max(1, self.prefill_budget // 4)
        return min(share, self.max_prefill_chunk)

    @property
    def final_prefill_chunk(self) -> int:
        """Last prompt tokens that one request gets in one step, whatever the others need."""
        return (
            self.fair_prefill_chunk
            if self.long_prefill_threshold
            else min(2 * self.fair_prefill_chunk, self.max_prefill_chunk)
        )

    @property
    def may_prefill_sequentially(self) -> bool:
        """Whether prompts may be prefilled one after the other while no waiting request needs less.

        False with target_itl_ms, which leaves prompts less once the first is complete; other queues have own orders.
        """
        return self.scheduling_policy == "fifo" and self.long_prefill_threshold is None and self.target_itl_ms is None

    @property
    def max_prefill_chunk(self) -> int:
        """Most prompt tokens of one request in one step."""
        return min(self.prefill_budget, self.max_chunk_tokens or self.prefill_budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Settings of the pool of KV blocks.

    Attributes:
        num_blocks: blocks in the pool; a block is block_size tokens of one layer group.
        block_size: tokens in a block.
        windows: one entry for each layer group: None is full attention, else the sliding window in tokens (a token sees
            itself and window - 1 before it). Empty only where all layers keep a state.
        enable_prefix_caching: whether full blocks are hashed and shared.
        model_id: part of the root of block hashes.
        max_cached_blocks: see RunnerInfo.
        has_state, num_state_checkpoints: see RunnerInfo.
    """

    num_blocks: int
    block_size: int = 16
    windows: tuple[int | None, ...] = (None,)
    enable_prefix_caching: bool = True
    model_id: str = ""
    max_cached_blocks: int | None = None
    has_state: bool = False
    num_state_checkpoints: int = 0

    def __post_init__(self) -> None:
        _at_least(1, num_blocks=self.num_blocks, block_size=self.block_size)
        _at_least(0, max_cached_blocks=self.max_cached_blocks, num_state_checkpoints=self.num_state_checkpoints)
        if not self.windows and not self.has_state:
            raise ConfigError("a cache needs at least one layer group", option="windows")
        _at_least(1, **{f"windows[{group}]": window for group, window in enumerate(self.windows)})

    @property
    def shares_states(self) -> bool:
        """Whether states of prefixes are saved, so that later sequences may start with them."""
        return self.has_state and self.enable_prefix_caching and self.num_state_checkpoints > 0


def with_auto_length(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for configs, in which max_model_len "auto" is fits_length_to_cache.

    Then the longest request has as many tokens as fit into the KV cache, at most the model's own limit.
    """
    values = dict(options)
    if values.get("max_model_len") == AUTO_LENGTH:
        values |= {"max_model_len": None, "fits_length_to_cache": True}
    return values
