"""Aliases: the names of transformers' continuous batching for the scheduler and the cache of this engine.

    PagedAttentionCache     KVCacheManager
    RequestStatus           RequestState, which has the same states and a few more
    FIFOScheduler           Scheduler with batching_policy "fifo" and its safety margin
    PrefillFirstScheduler   Scheduler with batching_policy "prefill_first"

Models choose the same by name: LLM(batching_policy="fifo", safety_margin=0.2).
"""

from collections.abc import Sequence as Items
from dataclasses import replace

from chairlift.core.request import EngineOutput, GenerateRequest, RequestState
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.request_limits import RequestLimits, ValidatedRequest, validate_request
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.scheduler.batching_policy import DEFAULT_SAFETY_MARGIN
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.structured.grammar import Grammar

PagedAttentionCache = KVCacheManager
RequestStatus = RequestState

ANY_TOKEN = 2**31 - 1


class StandaloneScheduler(Scheduler):
    """A Scheduler without an engine client in front of it: it validates each request itself."""

    def add_request(
        self, validated: GenerateRequest | ValidatedRequest, now: float, grammars: Items[Grammar] = (),
        waited: float = 0.0,
    ) -> list[EngineOutput]:  # fmt: skip
        """Queue a request; see Scheduler. Raises InvalidRequest (or a subclass) if it can never be served, too."""
        return super().add_request(validate_request(validated, self.limits), now, grammars, waited)


class FIFOScheduler(StandaloneScheduler):
    """Schedules decodes first, then prompts in order of arrival while enough blocks are free."""

    def __init__(
        self, cache: KVCacheManager, config: SchedulerConfig | None = None, *, limits: RequestLimits | None = None,
        safety_margin: float = DEFAULT_SAFETY_MARGIN,
    ) -> None:  # fmt: skip
        """Create a scheduler for a KV cache.

        Args:
            cache: the KV cache.
            config: the other limits of a step; its batching and safety margin are replaced.
            limits: limits of a request; None for what the cache itself can hold.
            safety_margin: share of free blocks below which only decoding requests are scheduled, 0 to less than 1.

        Raises ConfigError for a margin out of range.
        """
        config = replace(config or SchedulerConfig(), batching_policy="fifo", safety_margin=safety_margin)
        super().__init__(config, cache, limits or limits_of(cache, config))


class PrefillFirstScheduler(StandaloneScheduler):
    """Schedules prompts first and decodes with the rest, but never delays decodes for long."""

    def __init__(
        self, cache: KVCacheManager, config: SchedulerConfig | None = None, *, limits: RequestLimits | None = None
    ) -> None:
        """Schedule over a cache; see FIFOScheduler."""
        config = replace(config or SchedulerConfig(), batching_policy="prefill_first", safety_margin=None)
        super().__init__(config, cache, limits or limits_of(cache, config))


def limits_of(cache: KVCacheManager, config: SchedulerConfig) -> RequestLimits:
    """Return the limits of a cache, with any vocabulary."""
    own = cache.config
    info = RunnerInfo(
        vocab_size=ANY_TOKEN, max_model_len=own.num_blocks * own.block_size, num_blocks=own.num_blocks,
        block_size=own.block_size, windows=own.windows,
    )  # fmt: skip
    return RequestLimits.from_config(config, info)
