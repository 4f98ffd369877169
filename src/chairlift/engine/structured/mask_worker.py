"""MaskWorker: computes the token masks of rows with a grammar in a thread, while the model runs.

    commit ──prefetch──► masks of sequences that have just got a token ──┐  the engine thread delivers and schedules
    launch ──for_step──► masks of the other sampled rows of the step ────┴──► TokenMasks

The worker thread computes all masks of a batch in one call that does not hold the GIL, so the engine thread goes on.
Where the runner keeps every CPU busy, the engine thread computes some of the masks and waits briefly for the others
before it launches the step: the masks need one of the runner's CPUs in any case, and a step is slower while they do.
"""

import time
from collections.abc import Iterator
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np

from chairlift.core.cpu_affinity_and_priority import cpus_apart_from, pin_thread
from chairlift.engine.step_plan import Int32, TokenMasks
from chairlift.engine.structured.grammar_matcher import GrammarMatcher, MaskBatch
from chairlift.engine.structured.mask_filler import MaskFiller

MAX_WORKER_START_SECONDS = 0.0005
"""How long the engine thread waits at most for the worker thread to start a batch, which needs the GIL until then."""
MAX_MASK_SECONDS = 0.002
"""How long the engine thread computes masks at most before a launch, and how long it waits for the worker's masks."""
NUM_EXTRA_WORKER_MASKS = 2
"""Masks that the worker thread computes beyond its half, while the engine thread delivers outputs and schedules."""


class PendingMasks:
    """The masks of one step, which are being computed; all memory is allocated before the launch."""

    def __init__(self, sample_indices: Int32, grammars: Items[GrammarMatcher]) -> None:
        """Collect the pending masks of these grammars. Raises MemoryError."""
        pending = [grammar.pending_mask for grammar in grammars if grammar.pending_mask is not None]
        assert len(pending) == len(sample_indices), "a row without a mask"
        self._batches = list(dict.fromkeys(batch for batch, _ in pending))
        self._rows: list[tuple[MaskBatch, int]] = []
        # In the usual case one batch has exactly the rows of the step, and its memory is used without a copy.
        bitmask = self._batches[0].bits
        if len(self._batches) > 1 or [row for _, row in pending] != list(range(len(bitmask))):
            self._rows, bitmask = pending, np.empty((len(pending), bitmask.shape[1]), np.int32)
        self._masks = TokenMasks(sample_indices, bitmask)

    def wait(self) -> None:
        """Wait until no thread uses the grammars any more."""
        for batch in self._batches:
            batch.done.exception()

    def wait_briefly(self) -> bool:
        """Wait for MAX_MASK_SECONDS at most; return whether all masks are ready."""
        deadline = time.perf_counter() + MAX_MASK_SECONDS
        while not all(batch.done.done() for batch in self._batches):
            if time.perf_counter() >= deadline:
                return False
            time.sleep(0)  # releases the GIL without letting this CPU go idle
        return True

    def result(self) -> TokenMasks:
        """Wait for the masks and return them in the order of the sample indices."""
        self.wait()
        for target, (batch, row) in enumerate(self._rows):
            self._masks.bitmask[target] = batch.bits[row]
        return self._masks


class MaskWorker:
    """Computes masks in the order of the steps. Its thread starts with the first batch.

    A process that exits while masks are computed waits for them, as for the work of any executor.

    Attributes:
        uses_engine_thread: whether the engine thread computes some of the masks, and waits for the others before a
            launch.
    """

    def __init__(self, busy_cpus: Items[int] = (), *, runner_idles: bool = True) -> None:
        """Choose the CPUs of the worker thread.

        Args:
            busy_cpus: CPUs that the runner keeps busy while it computes.
            runner_idles: whether the runner is idle between a commit and the next launch.
        """
        self._cpus = cpus_apart_from(busy_cpus)
        self.uses_engine_thread = runner_idles and not self._cpus.isdisjoint(busy_cpus)
        self._filler = MaskFiller()
        self._thread: ThreadPoolExecutor | None = None
        self._latest: MaskBatch | None = None
        self._engine_thread_grammars: Items[GrammarMatcher] = ()

    def prefetch(self, grammars: Items[GrammarMatcher]) -> None:
        """Start to compute the next masks of grammars, which must not change until for_step() has them."""
        count = len(grammars) // 2 + NUM_EXTRA_WORKER_MASKS if self.uses_engine_thread else len(grammars)
        self._engine_thread_grammars = ()
        with suppress(MemoryError, RuntimeError):  # for_step() computes them again, or raises the error
            self._submit(grammars[:count])
            self._engine_thread_grammars = grammars[count:]

    @contextmanager
    def for_step(self, sample_indices: Int32, grammars: Items[GrammarMatcher]) -> Iterator[PendingMasks]:
        """Yield the masks of a step. After the block, no thread uses its grammars any more.

        Args:
            sample_indices: the plan's masked_samples.
            grammars: of these rows, in the same order.
        """
        self._fill_in_engine_thread(grammars)
        self._submit([grammar for grammar in grammars if grammar.pending_mask is None])
        masks = PendingMasks(sample_indices, grammars)
        try:
            yield masks
        finally:
            masks.wait()

    def stop(self) -> None:
        """Stop the thread after the batches it already has."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _fill_in_engine_thread(self, sampled: Items[GrammarMatcher]) -> None:
        """Compute the sampled grammars' masks that prefetch() left to this thread, for MAX_MASK_SECONDS."""
        remaining, self._engine_thread_grammars = self._engine_thread_grammars, ()
        if not remaining:
            return
        # Some of these may have finished since, or were not scheduled.
        sampled_ids = set(map(id, sampled))
        grammars = [grammar for grammar in remaining if id(grammar) in sampled_ids]
        if not grammars:
            return
        batch = MaskBatch(np.empty((len(grammars), grammars[0].width), np.int32))
        batch.done = Future()
        deadline = time.perf_counter() + MAX_MASK_SECONDS
        for row, grammar in enumerate(grammars):
            if time.perf_counter() >= deadline:
                break
            MaskFiller.fill_one(grammar, batch.bits[row])
            grammar.pending_mask = (batch, row)
        batch.done.set_result(None)

    def _submit(self, grammars: Items[GrammarMatcher]) -> None:
        """Give the worker thread a batch, and wait until it has released the GIL."""
        if not grammars:
            return
        batch = MaskBatch(np.empty((len(grammars), grammars[0].width), np.int32))
        if self._thread is None:  # threads that the library starts there inherit these CPUs
            self._thread = ThreadPoolExecutor(
                1, thread_name_prefix="chairlift-masks", initializer=pin_thread, initargs=(self._cpus,)
            )
        # A worker that still computes the batch before holds no GIL, so there is nothing to wait for.
        is_worker_free = self._latest is None or self._latest.done.done()
        batch.done = self._thread.submit(self._filler.fill, grammars, batch)
        self._latest = batch
        for row, grammar in enumerate(grammars):
            grammar.pending_mask = (batch, row)
        deadline = time.perf_counter() + MAX_WORKER_START_SECONDS
        while is_worker_free and not batch.runs_without_gil and time.perf_counter() < deadline:
            time.sleep(0)  # releases the GIL without letting this CPU go idle
