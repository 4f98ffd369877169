"""StatsLog: a line of throughput, queue and cache usage at a fixed interval, while there is traffic."""

import asyncio
import logging
from collections.abc import Callable

from chairlift.core.clock import Clock, SystemClock
from chairlift.server.telemetry import Telemetry
from chairlift.web.admission import AdmissionController

log = logging.getLogger(__name__)


class StatsLog:
    """Makes the lines from totals that the server counts anyway, so the engine does nothing for them."""

    def __init__(self, telemetry: Telemetry, admission: AdmissionController, clock: Clock | None = None) -> None:
        """Start the first interval now."""
        self._telemetry = telemetry
        self._admission = admission
        self._clock = clock or SystemClock()
        self._last = self._totals()

    def next_line(self) -> str | None:
        """End an interval; return its line, None if no token was computed or sent and no request is open."""
        last, self._last = self._last, self._totals()
        seconds, prompt_tokens, output_tokens = (now - then for now, then in zip(self._last, last, strict=True))
        if not prompt_tokens and not output_tokens and not self._admission.open_requests:
            return None
        waiting, running = self._admission.engine_counts
        seconds = max(seconds, 1e-3)
        return (
            f"prompt throughput: {prompt_tokens / seconds:.1f} tokens/s, "
            f"generation throughput: {output_tokens / seconds:.1f} tokens/s, "
            f"running: {running} requests, waiting: {waiting} requests, "
            f"KV cache usage: {self._telemetry.cache_usage:.1%}, "
            f"prefix cache hit rate: {self._telemetry.prefix_hit_ratio:.1%}"
        )

    async def run(self, interval_seconds: float, print_line: Callable[[str], None]) -> None:
        """Write a line every `interval_seconds` until cancelled: to the log at level info, or else by `print_line`."""
        self._last = self._totals()
        while True:
            await asyncio.sleep(interval_seconds)
            if (line := self.next_line()) is None:
                continue
            if log.isEnabledFor(logging.INFO):
                log.info("%s", line)
            else:
                print_line(line)

    def _totals(self) -> tuple[float, int, int]:
        return self._clock.now(), self._telemetry.num_prefill_tokens, self._telemetry.num_output_tokens
