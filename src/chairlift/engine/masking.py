"""Masking: what may be drawn next in the rows that follow a grammar, found out in a thread while the model runs."""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from chairlift.engine.plan import Int32, Masks
from chairlift.engine.structure.grammar import Grammar


class Masking:
    """Makes masks, one step's after another's. Its thread begins with the first of them."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    @contextmanager
    def begun(self, places: Int32, grammars: Items[Grammar]) -> "Iterator[Future[Masks]]":
        """Have the masks of a step made; when this is left, nobody touches the grammars any more.

        Args:
            places: the plan's masked.
            grammars: of these rows, in the same order.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="chairlift-masks")
        bits = np.zeros((len(grammars), grammars[0].width), np.int32)  # here: nothing goes wrong behind a launch
        masks = self._thread.submit(_made, Masks(places, bits), grammars)
        try:
            yield masks
        finally:
            masks.exception()

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def _made(masks: Masks, grammars: Items[Grammar]) -> Masks:
    for row, grammar in zip(masks.bits, grammars, strict=True):
        grammar.fill(row)
    return masks
