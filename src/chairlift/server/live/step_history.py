"""StepHistory: what the engine's steps came to in each of the last seconds, for charts."""

import time
from collections.abc import Callable

from chairlift.core.load_report import LoadReport
from chairlift.engine.step_stats import StepStats
from chairlift.web.service.event_ring_buffer import EventRingBuffer

NUM_SECONDS = 300
"""Samples that are kept, one a second."""

FIELDS = (
    "at_seconds", "num_steps", "busy_ms", "prefill_tokens", "decode_tokens", "max_batch_tokens", "num_running",
    "num_waiting", "held_blocks",
)  # fmt: skip
"""Fields of a sample, in order.

    at_seconds: end of the sample, in seconds since 1970 UTC.
    num_steps: committed steps in it.
    busy_ms: milliseconds in which some step was in progress.
    prefill_tokens: tokens of rows with more than one token.
    decode_tokens: the other tokens.
    max_batch_tokens: tokens of a step at most.
    num_running, num_waiting, held_blocks: sequences and blocks at its end.
"""


class StepHistory:
    """Adds up the step stats that the server receives for its metrics anyway; the engine does nothing for it.

    The thread of the step stats calls record(), the event loop calls sample().

    Attributes:
        log: the samples, as lists of the values of FIELDS.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.log = EventRingBuffer(NUM_SECONDS)
        self._wall_clock = wall_clock
        self._totals = (0, 0.0, 0, 0)
        self._last = self._totals
        self._last_end_ms = 0.0
        self._max_batch_tokens = 0

    def record(self, stats: StepStats) -> None:
        """Add a step."""
        num_steps, busy_ms, prefill_tokens, decode_tokens = self._totals
        end = stats.ended_ms
        if end < self._last_end_ms:  # another engine, whose time begins at zero
            self._last_end_ms = 0.0
        busy_ms += end - max(stats.started_ms, self._last_end_ms)
        self._last_end_ms = end
        self._max_batch_tokens = stats.max_batch_tokens
        self._totals = (
            num_steps + 1, busy_ms, prefill_tokens + stats.num_prefill_tokens,
            decode_tokens + stats.num_tokens - stats.num_prefill_tokens,
        )  # fmt: skip

    def sample(self, load: LoadReport) -> None:
        """End a sample; `load` is the engine's load now."""
        last, self._last = self._last, self._totals
        num_steps, busy_ms, prefill_tokens, decode_tokens = (
            now - then for now, then in zip(self._last, last, strict=True)
        )
        self.log.add([
            round(self._wall_clock(), 2), num_steps, round(busy_ms, 2), prefill_tokens, decode_tokens,
            self._max_batch_tokens, load.running_requests, load.waiting_requests,
            load.total_blocks - load.free_blocks,
        ])  # fmt: skip
