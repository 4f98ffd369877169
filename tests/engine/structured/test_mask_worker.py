"""Masks are made in a thread of their own, one row a grammar, and nobody touches the grammars afterwards."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from chairlift.core.cpu_affinity import usable_cpus
from chairlift.engine.step_plan import TokenMasks
from chairlift.engine.structured import mask_worker as masking_module
from chairlift.engine.structured.grammar import Grammar, MaskBatch, MaskFiller
from chairlift.engine.structured.mask_worker import MaskWorker
from support_structure import grammar_of


@pytest.fixture
def masking() -> Iterator[MaskWorker]:
    made = MaskWorker()
    yield made
    made.stop()


def tokens_of(masks: TokenMasks) -> dict[int, list[int]]:
    """Return by place what the masks allow."""
    return {
        place: np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        for place, bits in masks.by_row().items()
    }


def places(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_each_row_is_that_of_its_grammar(masking: MaskWorker) -> None:
    with masking.for_step(places(4, 7), [grammar_of(regex="a"), grammar_of(regex="[bc]")]) as making:
        made = making.result()
    assert tokens_of(made) == {4: [97], 7: [98, 99]}


def test_what_was_begun_ahead_is_not_made_again(masking: MaskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = MaskFiller.fill
    monkeypatch.setattr(MaskFiller, "fill", lambda self, *given: asked.append(len(given[0])) or real(self, *given))
    first, second, third = (grammar_of(regex=regex) for regex in ("a", "[bc]", "d"))
    masking.prefetch([first, second])
    with masking.for_step(places(0, 1), [first, second]) as making:
        assert tokens_of(making.result()) == {0: [97], 1: [98, 99]}
    with masking.for_step(places(2, 5, 6), [third, second, first]) as making:  # a step later: nobody drew
        assert tokens_of(making.result()) == {2: [100], 5: [98, 99], 6: [97]}
    assert asked == [2, 1]


def test_a_token_ends_what_was_made(masking: MaskWorker) -> None:
    grammar = grammar_of(regex="ab[cd]")
    for token, following in zip(b"ab", ([98], [99, 100]), strict=True):
        with masking.for_step(places(0), [grammar]) as making:
            making.result()
        grammar.advance(token)
        masking.prefetch([grammar])
        with masking.for_step(places(3), [grammar]) as making:
            assert tokens_of(making.result()) == {3: following}


def test_leaving_waits_for_the_thread_whatever_happens_meanwhile(
    masking: MaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, seen = threading.Event(), []

    def slow(self: MaskFiller, grammars: Sequence[Grammar], batch: MaskBatch) -> None:
        gate.wait(10)
        seen.append(threading.current_thread().name)

    monkeypatch.setattr(MaskFiller, "fill", slow)

    def interrupted() -> None:
        with masking.for_step(places(0), [grammar_of(regex="a")]):
            threading.Timer(0.05, gate.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert seen and seen[0].startswith("chairlift-masks")


def test_masks_there_is_no_room_for_fail_before_anything_was_launched_and_not_ahead_of_that(
    masking: MaskWorker,
) -> None:
    huge = grammar_of(regex="a")
    huge.width = 1 << 50
    masking.prefetch([huge])
    with pytest.raises(MemoryError), masking.for_step(places(0), [huge]):
        pytest.fail("the step was launched")


def test_what_there_is_no_room_for_is_found_out_before_the_launch(
    masking: MaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two batches are put together in memory of their own; behind a launch nothing may go wrong."""
    first, second = grammar_of(regex="a"), grammar_of(regex="b")
    masking.prefetch([first])
    made = masking_module.np.empty

    def empty(shape: tuple[int, int], dtype: type) -> np.ndarray:
        if shape[0] == 2:
            raise MemoryError("no room for both")
        return made(shape, dtype)

    monkeypatch.setattr(masking_module.np, "empty", empty)
    with pytest.raises(MemoryError), masking.for_step(places(0, 1), [first, second]):
        pytest.fail("the step was launched")
    monkeypatch.undo()
    with masking.for_step(places(0, 1), [first, second]) as making:
        monkeypatch.setattr(masking_module, "np", None)
        assert tokens_of(making.result()) == {0: [97], 1: [98]}


def test_the_thread_outlives_whatever_is_raised_in_it(masking: MaskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def panic(*given: object) -> None:
        raise Panic("in the middle of a mask")

    grammars = [grammar_of(regex="a"), grammar_of(regex="b")]
    monkeypatch.setattr(Grammar, "_filled", panic)
    with masking.for_step(places(0, 1), grammars) as making:
        assert (making.result().bitmask == -1).all(), "what is wrong is found out with the next token"
    monkeypatch.undo()
    with masking.for_step(places(0), [grammar_of(regex="c")]) as making:
        assert tokens_of(making.result()) == {0: [99]}


EXIT = """
import sys
import numpy as np
from chairlift.engine.structured.mask_worker import MaskWorker
from support_structure import grammar_of
masking = MaskWorker()
for _ in range(3):
    masking.prefetch([grammar_of(json_schema={"type": "array", "items": {"type": "string"}}) for _ in range(200)])
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
    real = MaskFiller.fill
    monkeypatch.setattr(MaskFiller, "fill", lambda *given: seen.append(usable_cpus()) or real(*given))
    everywhere = tuple(sorted(usable_cpus()))
    masking = MaskWorker(everywhere)
    with masking.for_step(places(0), [grammar_of(regex="a")]) as making:
        making.result()
    masking.stop()
    assert seen == [frozenset(everywhere[1:])] and usable_cpus() == frozenset(everywhere)


@pytest.fixture
def sharing() -> Iterator[MaskWorker]:
    """Where the runner keeps every processor busy."""
    made = MaskWorker(tuple(sorted(usable_cpus())))
    yield made
    made.stop()


def test_who_has_no_processor_of_its_own_has_the_engine_s_thread_make_some(
    sharing: MaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = MaskFiller.fill
    monkeypatch.setattr(MaskFiller, "fill", lambda self, *given: asked.append(len(given[0])) or real(self, *given))
    grammars = [grammar_of(regex=chr(97 + each)) for each in range(10)]
    sharing.prefetch(grammars)
    order = [7, 0, 9, 1, 2, 8, 3, 4, 6]  # the fifth does not draw
    with sharing.for_step(places(*range(9)), [grammars[each] for each in order]) as making:
        assert asked == [10 // 2 + masking_module.LEAD]
        assert tokens_of(making.result()) == {place: [97 + each] for place, each in enumerate(order)}
    with sharing.for_step(places(5), [grammars[5]]) as making:  # a step later
        assert tokens_of(making.result()) == {5: [97 + 5]}
    assert len(asked) == 1


def test_masks_that_take_long_are_the_other_thread_s(sharing: MaskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking_module, "PATIENCE_SECONDS", 0.0)
    here: list[str] = []
    real = Grammar.fill
    monkeypatch.setattr(Grammar, "fill", lambda *given: here.append(threading.current_thread().name) or real(*given))
    grammars = [grammar_of(regex=chr(97 + each)) for each in range(10)]
    sharing.prefetch(grammars)
    with sharing.for_step(places(*range(10)), grammars) as making:
        assert tokens_of(making.result()) == {each: [97 + each] for each in range(10)}
    assert here == []


def test_what_goes_wrong_with_a_mask_made_here_is_found_out_with_the_next_token(
    sharing: MaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = [grammar_of(regex=chr(97 + each)) for each in range(8)]
    sharing.prefetch(grammars)

    def panic(*given: object) -> None:
        raise BaseException("in the middle of a mask")

    monkeypatch.setattr(Grammar, "fill", panic)
    with sharing.for_step(places(*range(8)), grammars) as making:
        bits = making.result().bitmask
    assert (bits[6:] == -1).all() and (bits[:6] != -1).any(axis=1).all()


def test_nobody_waits_for_long_before_a_launch(sharing: MaskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    real = MaskFiller.fill
    monkeypatch.setattr(MaskFiller, "fill", lambda self, *given: gate.wait(10) and real(self, *given))
    with sharing.for_step(places(0), [grammar_of(regex="a")]) as making:
        assert not making.come_soon()
        gate.set()
        assert tokens_of(making.result()) == {0: [97]}
        assert making.come_soon()


def test_who_has_a_processor_left_or_a_step_in_flight_shares_nothing() -> None:
    everywhere = tuple(sorted(usable_cpus()))
    assert MaskWorker(everywhere).shares
    assert not MaskWorker().shares and not MaskWorker(everywhere, rests=False).shares
    if len(everywhere) > 1:
        assert not MaskWorker(everywhere[:-1]).shares


def test_what_is_left_is_made_only_for_who_draws(sharing: MaskWorker) -> None:
    grammars = [grammar_of(regex=chr(97 + each)) for each in range(10)]
    sharing.prefetch(grammars)
    with sharing.for_step(places(0), grammars[:1]) as making:
        assert tokens_of(making.result()) == {0: [97]}
    assert grammars[9].pending_mask is None, "it was aborted meanwhile"
