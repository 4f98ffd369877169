"""Masks are made in a thread of their own, one row a grammar, and nobody touches the grammars afterwards."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from chairlift.core.processors import usable_cpus
from chairlift.engine import masking as masking_module
from chairlift.engine.masking import Masking
from chairlift.engine.plan import Masks
from chairlift.engine.structure.grammar import Batch, Filler, Grammar
from support_structure import grammar_of


@pytest.fixture
def masking() -> Iterator[Masking]:
    made = Masking()
    yield made
    made.stop()


def tokens_of(masks: Masks) -> dict[int, list[int]]:
    """Return by place what the masks allow."""
    return {
        place: np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        for place, bits in masks.by_row().items()
    }


def places(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_each_row_is_that_of_its_grammar(masking: Masking) -> None:
    with masking.begun(places(4, 7), [grammar_of(regex="a"), grammar_of(regex="[bc]")]) as making:
        made = making.result()
    assert tokens_of(made) == {4: [97], 7: [98, 99]}


def test_what_was_begun_ahead_is_not_made_again(masking: Masking, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = Filler.fill
    monkeypatch.setattr(Filler, "fill", lambda self, *given: asked.append(len(given[0])) or real(self, *given))
    first, second, third = (grammar_of(regex=regex) for regex in ("a", "[bc]", "d"))
    masking.ahead([first, second])
    with masking.begun(places(0, 1), [first, second]) as making:
        assert tokens_of(making.result()) == {0: [97], 1: [98, 99]}
    with masking.begun(places(2, 5, 6), [third, second, first]) as making:  # a step later: nobody drew
        assert tokens_of(making.result()) == {2: [100], 5: [98, 99], 6: [97]}
    assert asked == [2, 1]


def test_a_token_ends_what_was_made(masking: Masking) -> None:
    grammar = grammar_of(regex="ab[cd]")
    for token, following in zip(b"ab", ([98], [99, 100]), strict=True):
        with masking.begun(places(0), [grammar]) as making:
            making.result()
        grammar.advance(token)
        masking.ahead([grammar])
        with masking.begun(places(3), [grammar]) as making:
            assert tokens_of(making.result()) == {3: following}


def test_leaving_waits_for_the_thread_whatever_happens_meanwhile(
    masking: Masking, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, seen = threading.Event(), []

    def slow(self: Filler, grammars: Sequence[Grammar], batch: Batch) -> None:
        gate.wait(10)
        seen.append(threading.current_thread().name)

    monkeypatch.setattr(Filler, "fill", slow)

    def interrupted() -> None:
        with masking.begun(places(0), [grammar_of(regex="a")]):
            threading.Timer(0.05, gate.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert seen and seen[0].startswith("chairlift-masks")


def test_masks_there_is_no_room_for_fail_before_anything_was_launched_and_not_ahead_of_that(masking: Masking) -> None:
    huge = grammar_of(regex="a")
    huge.width = 1 << 50
    masking.ahead([huge])
    with pytest.raises(MemoryError), masking.begun(places(0), [huge]):
        pytest.fail("the step was launched")


def test_what_there_is_no_room_for_is_found_out_before_the_launch(
    masking: Masking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two batches are put together in memory of their own; behind a launch nothing may go wrong."""
    first, second = grammar_of(regex="a"), grammar_of(regex="b")
    masking.ahead([first])
    made = masking_module.np.empty

    def empty(shape: tuple[int, int], dtype: type) -> np.ndarray:
        if shape[0] == 2:
            raise MemoryError("no room for both")
        return made(shape, dtype)

    monkeypatch.setattr(masking_module.np, "empty", empty)
    with pytest.raises(MemoryError), masking.begun(places(0, 1), [first, second]):
        pytest.fail("the step was launched")
    monkeypatch.undo()
    with masking.begun(places(0, 1), [first, second]) as making:
        monkeypatch.setattr(masking_module, "np", None)
        assert tokens_of(making.result()) == {0: [97], 1: [98]}


def test_the_thread_outlives_whatever_is_raised_in_it(masking: Masking, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def panic(*given: object) -> None:
        raise Panic("in the middle of a mask")

    grammars = [grammar_of(regex="a"), grammar_of(regex="b")]
    monkeypatch.setattr(Grammar, "_filled", panic)
    with masking.begun(places(0, 1), grammars) as making:
        assert (making.result().bits == -1).all(), "what is wrong is found out with the next token"
    monkeypatch.undo()
    with masking.begun(places(0), [grammar_of(regex="c")]) as making:
        assert tokens_of(making.result()) == {0: [99]}


EXIT = """
import sys
import numpy as np
from chairlift.engine.masking import Masking
from support_structure import grammar_of
masking = Masking()
for _ in range(3):
    masking.ahead([grammar_of(json_schema={"type": "array", "items": {"type": "string"}}) for _ in range(200)])
sys.exit(7)
"""


def test_a_program_may_end_while_masks_are_made() -> None:
    """The library works on without Python's lock; what it writes to must not be gone by then."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", EXIT], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert done.returncode == 7


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="one processor is beside none")
def test_the_thread_keeps_off_the_processor_that_hands_out_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[frozenset[int]] = []
    real = Filler.fill
    monkeypatch.setattr(Filler, "fill", lambda *given: seen.append(usable_cpus()) or real(*given))
    everywhere = tuple(sorted(usable_cpus()))
    masking = Masking(everywhere)
    with masking.begun(places(0), [grammar_of(regex="a")]) as making:
        making.result()
    masking.stop()
    assert seen == [frozenset(everywhere[1:])] and usable_cpus() == frozenset(everywhere)
