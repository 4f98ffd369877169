"""Names that users of transformers' continuous batching know, for the scheduler and the cache of this engine.

    PagedAttentionCache     KVCache
    RequestStatus           RequestState, which has their states and a few more
    FIFOScheduler           Scheduler with batching "fifo" and its safety margin
    PrefillFirstScheduler   Scheduler with batching "prefill_first"

Models choose the same by name: LLM(batching="fifo", safety_margin=0.2).
"""

from dataclasses import replace

from chairlift.core.request import RequestState
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.scheduler.batching_policy import DEFAULT_SAFETY_MARGIN
from chairlift.engine.scheduler.scheduler import Scheduler

PagedAttentionCache = KVCacheManager
RequestStatus = RequestState

ANY_TOKEN = 2**31 - 1


class FIFOScheduler(Scheduler):
    """Those who generate first, then prompts in order of arrival, as long as enough blocks are free."""

    def __init__(
        self, cache: KVCacheManager, config: SchedulerConfig | None = None, *, limits: RequestLimits | None = None,
        safety_margin: float = DEFAULT_SAFETY_MARGIN,
    ) -> None:  # fmt: skip
        """Schedule over a cache.

        Args:
            cache: the pool's books.
            config: the other limits of a step; its batching and safety margin are replaced.
            limits: what a request is held against; None for what the cache itself can hold.
            safety_margin: share of free blocks below which only generating requests ride, 0 to less than 1.

        Raises ConfigError for a margin that cannot be.
        """
        config = replace(config or SchedulerConfig(), batching="fifo", safety_margin=safety_margin)
        super().__init__(config, cache, limits or limits_of(cache, config))


class PrefillFirstScheduler(Scheduler):
    """Prompts first, those who generate with what is left, but not left out for long."""

    def __init__(
        self, cache: KVCacheManager, config: SchedulerConfig | None = None, *, limits: RequestLimits | None = None
    ) -> None:
        """Schedule over a cache; see FIFOScheduler."""
        config = replace(config or SchedulerConfig(), batching="prefill_first", safety_margin=None)
        super().__init__(config, cache, limits or limits_of(cache, config))


def limits_of(cache: KVCacheManager, config: SchedulerConfig) -> RequestLimits:
    """What a cache can hold, with any vocabulary."""
    own = cache.config
    info = RunnerInfo(
        vocab_size=ANY_TOKEN, max_model_len=own.num_blocks * own.block_size, num_blocks=own.num_blocks,
        block_size=own.block_size, windows=own.windows,
    )  # fmt: skip
    return RequestLimits.from_config(config, info)
