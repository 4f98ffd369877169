"""ContinuousBatchingDebugger: dumps the scheduler and the cache of a manager, and checks them."""

from collections.abc import Callable
from typing import Any, Protocol

from chairlift.engine import state_snapshot
from chairlift.engine.engine_loop import EngineLoop
from chairlift.llm.transformers_compat.continuous_batch_processor import ContinuousBatchProcessor


class HasBatchProcessor(Protocol):
    """The part of a ContinuousBatchingManager that a debugger reads."""

    @property
    def batch_processor(self) -> ContinuousBatchProcessor | None:
        """The engine of the manager; None while there is none."""
        ...


class ContinuousBatchingDebugger:
    """Reads the engine of a manager while it runs, while it is paused, after its end and after a failure.

    After the end it answers with what the engine held last. Thread-safe.
    """

    def __init__(self, manager: HasBatchProcessor | ContinuousBatchProcessor) -> None:
        """Read the engine of a manager, or one that is stepped by hand."""
        self._manager = manager
        self._last: ContinuousBatchProcessor | None = None
        self._processor()

    def dump_scheduler_state(self) -> dict[str, Any]:
        """Return the open requests, waiting and running, and the engine's counters; every value fits into JSON.

        `engine` is its lifecycle state, or "not started"; `error` is why it ended.
        """
        return self._dump(lambda loop: dict(state_snapshot.scheduler_state(loop.scheduler, loop.now())))

    def dump_cache_state(self) -> dict[str, Any]:
        """Return the block counts of the KV cache, and the blocks of each running request by id.

        `blocks_of_callers` were allocated by hand; `engine` and `error` are those of dump_scheduler_state.
        """
        processor = self._processor()

        def read(loop: EngineLoop) -> dict[str, Any]:
            held = {
                str(sequence.seq_id): 0 if sequence.table is None else sequence.table.num_held
                for sequence in loop.scheduler.running.values()
            }
            by_hand = 0 if processor is None else processor.cache.num_allocated_blocks()
            counts = state_snapshot.cache_state(loop.scheduler.cache)
            return {**counts, "blocks_by_request": held, "blocks_of_callers": by_hand}

        return self._dump(read)

    def validate_consistency(self) -> list[str]:
        """Return what is inconsistent in blocks, slots and counters; an empty list if nothing is."""
        processor = self._processor()
        return [] if processor is None else processor.inspect(lambda loop: _violations(loop, processor))

    def _processor(self) -> ContinuousBatchProcessor | None:
        """Return the manager's engine, or the last one that was seen."""
        manager = self._manager
        found: ContinuousBatchProcessor | None
        if isinstance(manager, ContinuousBatchProcessor):
            found = manager
        else:
            found = manager.batch_processor or getattr(manager, "last_batch_processor", None)
        if found is not None:
            self._last = found
        return self._last

    def _dump(self, read: Callable[[EngineLoop], dict[str, Any]]) -> dict[str, Any]:
        processor = self._processor()
        if processor is None:
            return {"engine": "not started", "error": None}
        values, client = processor.inspect(read), processor.client
        if client is None:
            return {"engine": "stepped by hand", "error": None, **values}
        error = client.fatal_error
        return {"engine": str(client.state), "error": None if error is None else error.message, **values}


def _violations(loop: EngineLoop, processor: ContinuousBatchProcessor) -> list[str]:
    """Check the loop, and that every allocated block belongs to a running sequence or to a caller."""
    scheduler = loop.scheduler
    errors = scheduler.check_integrity()
    tables = [sequence.table for sequence in scheduler.running.values() if sequence.table is not None]
    of_requests = len({block for table in tables for _, _, block in table.held()})
    of_callers, allocated = processor.cache.num_allocated_blocks(), scheduler.cache.counts().held
    if of_requests + of_callers != allocated:
        errors.append(f"{allocated} blocks are allocated, running requests hold {of_requests} and callers {of_callers}")
    return errors
