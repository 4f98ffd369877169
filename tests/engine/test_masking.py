"""Masks are made in a thread of their own, one row a grammar, and nobody touches the grammars afterwards."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from chairlift.core.processors import usable_cpus
from chairlift.engine import masking as module
from chairlift.engine.masking import Masking
from chairlift.engine.plan import Masks
from chairlift.engine.structure import grammar as grammars_module
from chairlift.engine.structure.grammar import Batch, Grammar
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
    real = grammars_module.fill
    monkeypatch.setattr(module, "fill", lambda grammars, batch: asked.append(len(grammars)) or real(grammars, batch))
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

    def slow(grammars: Sequence[Grammar], batch: Batch) -> None:
        gate.wait(10)
        seen.append(threading.current_thread().name)
        batch.finish()

    monkeypatch.setattr(module, "fill", slow)

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


def test_the_thread_survives_a_library_that_panics(masking: Masking, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    class Panicking:
        def unsafe_compute_mask_ptr(self, *given: object) -> None:
            raise Panic("in the middle of a mask")

    real = grammars_module._executor
    monkeypatch.setattr(grammars_module, "_executor", Panicking)
    with masking.begun(places(0, 1), [grammar_of(regex="a"), grammar_of(regex="b")]) as making:
        assert tokens_of(making.result()) == {0: [97], 1: [98]}, "one by one"
    monkeypatch.setattr(grammars_module, "_executor", real)
    with masking.begun(places(0), [grammar_of(regex="c")]) as making:
        assert tokens_of(making.result()) == {0: [99]}


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="one processor is beside none")
def test_the_thread_keeps_off_the_processor_that_hands_out_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[frozenset[int]] = []
    real = grammars_module.fill
    monkeypatch.setattr(module, "fill", lambda *given: seen.append(usable_cpus()) or real(*given))
    everywhere = tuple(sorted(usable_cpus()))
    masking = Masking(everywhere)
    with masking.begun(places(0), [grammar_of(regex="a")]) as making:
        making.result()
    masking.stop()
    assert seen == [frozenset(everywhere[1:])] and usable_cpus() == frozenset(everywhere)
