"""EngineAsProcessor: an engine that a manager shows and does not own."""

import threading

from chairlift.engine.client.inline import InlineClient
from chairlift.llm.transformers_compat.continuous_batch_processor import ContinuousBatchProcessor


class EngineAsProcessor:
    """Shows the current engine of a manager as a ContinuousBatchProcessor, one for each engine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processor: ContinuousBatchProcessor | None = None

    def processor(self, client: InlineClient | None) -> ContinuousBatchProcessor | None:
        """Return the processor that shows this engine, the same one each time; None without an engine."""
        if client is None:
            return None
        with self._lock:
            if self._processor is None or self._processor.client is not client:
                self._processor = ContinuousBatchProcessor.of_client(client)
            return self._processor

    @property
    def last(self) -> ContinuousBatchProcessor | None:
        """The processor that was shown last, whose engine may have ended."""
        return self._processor

    def num_steps(self, client: InlineClient | None) -> int:
        """Return how many steps this engine has run; without one those of the last engine."""
        shown = self.processor(client) or self._processor
        return 0 if shown is None or shown.client is None else shown.client.loop.scheduler.counters.steps
