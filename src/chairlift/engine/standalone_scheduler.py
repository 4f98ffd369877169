"""StandaloneScheduler: a Scheduler over a KV cache alone, without an engine client and a runner."""

from collections.abc import Sequence as Items

from chairlift.core.engine_output import EngineOutput
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.core.request import GenerateRequest
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import ValidatedRequest, validate_request
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.structured.grammar_matcher import GrammarMatcher

ANY_TOKEN = MAX_INT32
"""Bound of token ids: no model's vocabulary is known here."""


class StandaloneScheduler(Scheduler):
    """A Scheduler without an engine client in front of it: it validates each request itself."""

    def add_request(
        self, validated: GenerateRequest | ValidatedRequest, now: float, grammars: Items[GrammarMatcher] = (),
        waited: float = 0.0,
    ) -> list[EngineOutput]:  # fmt: skip
        """Queue a request; see Scheduler. Raises InvalidRequest (or a subclass) if it can never be served, too."""
        return super().add_request(validate_request(validated, self.limits), now, grammars, waited)


def limits_of(cache: KVCacheManager, config: SchedulerConfig) -> RequestLimits:
    """Return the limits of a cache, with any vocabulary."""
    own = cache.config
    info = RunnerInfo(
        vocab_size=ANY_TOKEN, max_model_len=own.num_blocks * own.block_size, num_blocks=own.num_blocks,
        block_size=own.block_size, windows=own.windows,
    )  # fmt: skip
    return RequestLimits.from_config(config, info)
