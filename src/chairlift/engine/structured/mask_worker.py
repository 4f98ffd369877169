"""MaskWorker: computes the token masks of rows with a grammar in a thread, while the model runs.

    commit ──prefetch──► masks of sequences that have just got a token ──┐  the engine thread delivers and schedules
    launch ──for_step──► masks of the other sampled rows of the step ────┴──► TokenMasks

Masks that are begun together are made in one call that does not hold Python's lock: the engine's thread goes on. Where
the runner leaves no processor to that thread, the engine's makes some of the masks, too, and waits a little for the
others: they would be made on a processor of the runner's in any case, and a step that stumbles over them is slower.
"""

import time
from collections.abc import Iterator
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np

from chairlift.core.cpu_affinity import cpus_apart_from, pin_thread
from chairlift.engine.step_plan import Int32, TokenMasks
from chairlift.engine.structured.grammar import Grammar, MaskBatch, MaskFiller

ENTRY_SECONDS = 0.0005
"""That the engine's thread waits at most until the other is at work, which needs Python's lock for its first words."""
PATIENCE_SECONDS = 0.002
"""That the engine's thread spends at most on making masks before a launch, and again on waiting for the other's."""
LEAD = 2
"""Masks that the other thread makes while the engine's delivers and schedules."""


class PendingMasks:
    """The masks of one step, on their way. Nothing goes wrong with them behind a launch."""

    def __init__(self, places: Int32, grammars: Items[Grammar]) -> None:
        """Take the grammars of these places, whose masks were all begun. Raises MemoryError."""
        coming = [grammar.pending_mask for grammar in grammars if grammar.pending_mask is not None]
        assert len(coming) == len(places), "a row without a mask"
        self._batches = list(dict.fromkeys(batch for batch, _ in coming))
        self._rows: list[tuple[MaskBatch, int]] = []
        first = self._batches[0].bits
        if len(self._batches) > 1 or [row for _, row in coming] != list(range(len(first))):
            self._rows, first = coming, np.empty((len(coming), first.shape[1]), np.int32)
        self._masks = TokenMasks(places, first)

    def wait(self) -> None:
        """Return when nobody touches the grammars any more."""
        for batch in self._batches:
            batch.done.exception()

    def come_soon(self) -> bool:
        """Wait for a moment; returns whether they are there."""
        until = time.perf_counter() + PATIENCE_SECONDS
        while not all(batch.done.done() for batch in self._batches):
            if time.perf_counter() >= until:
                return False
            time.sleep(0)  # lets Python's lock go, and does not let this processor fall asleep
        return True

    def result(self) -> TokenMasks:
        """Wait for them."""
        self.wait()
        for to, (batch, row) in enumerate(self._rows):
            self._masks.bitmask[to] = batch.bits[row]
        return self._masks


class MaskWorker:
    """Makes masks, one step's after another's. Its thread begins with the first of them.

    A program that ends while masks are made waits for them, as for the work of any executor.

    Attributes:
        shares: whether the engine's thread makes some of them, and waits for the others before it launches.
    """

    def __init__(self, busy: Items[int] = (), *, rests: bool = True) -> None:
        """Make them beside a runner that keeps some processors busy, and `rests` between a commit and a launch."""
        self._cpus = cpus_apart_from(busy)
        self.shares = rests and not self._cpus.isdisjoint(busy)
        self._filler = MaskFiller()
        self._thread: ThreadPoolExecutor | None = None
        self._latest: MaskBatch | None = None
        self._left: Items[Grammar] = ()

    def prefetch(self, grammars: Items[Grammar]) -> None:
        """Begin with masks that are wanted soon; these grammars must not be touched before for_step() has them."""
        count = len(grammars) // 2 + LEAD if self.shares else len(grammars)
        self._left = ()
        with suppress(MemoryError, RuntimeError):  # then they are made, or it is said, when they are wanted
            self._make(grammars[:count])
            self._left = grammars[count:]

    @contextmanager
    def for_step(self, places: Int32, grammars: Items[Grammar]) -> Iterator[PendingMasks]:
        """Have the masks of a step made; when this is left, nobody touches its grammars any more.

        Args:
            places: the plan's masked.
            grammars: of these rows, in the same order.
        """
        self._make_left(grammars)
        self._make([grammar for grammar in grammars if grammar.pending_mask is None])
        making = PendingMasks(places, grammars)
        try:
            yield making
        finally:
            making.wait()

    def stop(self) -> None:
        """End the thread, after all that it was given."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _make_left(self, wanted: Items[Grammar]) -> None:
        """Make, in this thread, what was left to it and is wanted, as far as that takes no longer than it may."""
        left, self._left = self._left, ()
        if not left:
            return
        riding = set(map(id, wanted))
        grammars = [grammar for grammar in left if id(grammar) in riding]
        if not grammars:
            return
        batch = MaskBatch(np.empty((len(grammars), grammars[0].width), np.int32))
        batch.done = Future()
        until = time.perf_counter() + PATIENCE_SECONDS
        for row, grammar in enumerate(grammars):
            if time.perf_counter() >= until:
                break
            MaskFiller.fill_one(grammar, batch.bits[row])
            grammar.pending_mask = (batch, row)
        batch.done.set_result(None)

    def _make(self, grammars: Items[Grammar]) -> None:
        if not grammars:
            return
        batch = MaskBatch(np.empty((len(grammars), grammars[0].width), np.int32))
        if self._thread is None:  # what is started there keeps to these processors, too
            self._thread = ThreadPoolExecutor(
                1, thread_name_prefix="chairlift-masks", initializer=pin_thread, initargs=(self._cpus,)
            )
        is_free = self._latest is None or self._latest.done.done()
        batch.done = self._thread.submit(self._filler.fill, grammars, batch)
        self._latest = batch
        for row, grammar in enumerate(grammars):
            grammar.pending_mask = (batch, row)
        until = time.perf_counter() + ENTRY_SECONDS
        while is_free and not batch.is_at_work and time.perf_counter() < until:
            time.sleep(0)  # lets Python's lock go, and does not let this processor fall asleep
