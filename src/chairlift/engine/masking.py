"""Masking: what may be drawn next in the rows that follow a grammar, found out in a thread while the model runs.

    commit ──ahead──► masks of those that have just got a token ──┐    the engine's thread delivers, schedules, launches
    launch ──begun──► masks of whoever else draws in the step ────┴──► Masks

Masks that are begun together are made in one call that does not hold Python's lock: the engine's thread goes on.
"""

import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager, suppress
from queue import SimpleQueue

import numpy as np

from chairlift.core.processors import beside, stay_on
from chairlift.engine.plan import Int32, Masks
from chairlift.engine.structure.grammar import Batch, Grammar, fill

ENTRY_SECONDS = 0.0005
"""That the engine's thread waits at most until the other is at work, which needs Python's lock for its first words."""


class Making:
    """The masks of one step, on their way."""

    def __init__(self, places: Int32, grammars: Items[Grammar]) -> None:
        self._places = places
        coming = [grammar.coming for grammar in grammars if grammar.coming is not None]
        self._batches = list(dict.fromkeys(batch for batch, _ in coming))
        self._rows = coming
        assert len(coming) == len(places), "a row without a mask"

    def wait(self) -> None:
        """Return when nobody touches the grammars any more."""
        for batch in self._batches:
            batch.wait()

    def result(self) -> Masks:
        """Wait for them."""
        self.wait()
        first = self._batches[0].bits
        if len(self._batches) == 1 and [row for _, row in self._rows] == list(range(len(first))):
            return Masks(self._places, first)
        return Masks(self._places, np.stack([batch.bits[row] for batch, row in self._rows]))


class Masking:
    """Makes masks, one step's after another's. Its thread begins with the first of them."""

    def __init__(self, busy: Items[int] = ()) -> None:
        """Make them beside a runner that keeps some processors busy."""
        self._cpus = beside(busy)
        self._thread: threading.Thread | None = None
        self._batches: SimpleQueue[tuple[Items[Grammar], Batch] | None] = SimpleQueue()

    def ahead(self, grammars: Items[Grammar]) -> None:
        """Begin with masks that are wanted soon; nobody may touch these grammars before a step with them is begun()."""
        with suppress(MemoryError, RuntimeError):  # then they are made, or it is said, when they are wanted
            self._make(grammars)

    @contextmanager
    def begun(self, places: Int32, grammars: Items[Grammar]) -> Iterator[Making]:
        """Have the masks of a step made; when this is left, nobody touches its grammars any more.

        Args:
            places: the plan's masked.
            grammars: of these rows, in the same order.
        """
        self._make([grammar for grammar in grammars if grammar.coming is None])
        making = Making(places, grammars)
        try:
            yield making
        finally:
            making.wait()

    def stop(self) -> None:
        """End the thread, after all that it was given."""
        if self._thread is not None:
            self._batches.put(None)
            self._thread.join()
            self._thread = None

    def _make(self, grammars: Items[Grammar]) -> None:
        if not grammars:
            return
        batch = Batch(np.empty((len(grammars), grammars[0].width), np.int32))  # nothing goes wrong behind a launch
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="chairlift-masks", daemon=True)
            thread.start()
            self._thread = thread
        self._batches.put((grammars, batch))
        for row, grammar in enumerate(grammars):
            grammar.coming = (batch, row)
        until = time.perf_counter() + ENTRY_SECONDS
        while not batch.is_at_work and time.perf_counter() < until:
            time.sleep(0)  # lets Python's lock go, and does not let this processor fall asleep

    def _work(self) -> None:
        stay_on(self._cpus)  # the library's thread is started here, too
        while (item := self._batches.get()) is not None:
            fill(*item)
