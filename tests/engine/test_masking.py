"""Masks are made in a thread of their own, one row a grammar, and nobody touches the grammars afterwards."""

import threading

import numpy as np
import pytest

from chairlift.engine.masking import Masking
from support_structure import grammar_of


def test_each_row_is_that_of_its_grammar() -> None:
    masking = Masking()
    grammars = [grammar_of(regex="a"), grammar_of(regex="[bc]")]
    with masking.begun(np.array([4, 7], np.int32), grammars) as masks:
        made = masks.result()
    masking.stop()
    found = {
        place: np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        for place, bits in made.by_row().items()
    }
    assert {place: bits.tolist() for place, bits in found.items()} == {4: [97], 7: [98, 99]}


def test_leaving_waits_for_the_thread_whatever_happens_meanwhile() -> None:
    masking, gate, seen = Masking(), threading.Event(), []

    class Slow:
        width = 1

        def fill(self, row: object) -> None:
            gate.wait(10)
            seen.append(threading.current_thread().name)

    def interrupted() -> None:
        with masking.begun(np.array([0], np.int32), [Slow()]):  # type: ignore[list-item]
            threading.Timer(0.05, gate.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    masking.stop()
    assert seen and seen[0].startswith("chairlift-masks")


def test_masks_there_is_no_room_for_fail_before_anything_was_launched() -> None:
    class Huge:
        width = 1 << 50

    with pytest.raises(MemoryError), Masking().begun(np.array([0], np.int32), [Huge()]):  # type: ignore[list-item]
        pytest.fail("the step was launched")
