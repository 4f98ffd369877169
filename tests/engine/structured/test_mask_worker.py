"""MaskWorker fills masks in its own thread, one row a grammar, and does not touch the grammars afterwards."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.engine.step_plan import TokenMasks
from chairlift.engine.structured import mask_worker as mask_worker_module
from chairlift.engine.structured.grammar_matcher import GrammarMatcher, MaskBatch
from chairlift.engine.structured.mask_filler import MaskFiller
from chairlift.engine.structured.mask_worker import MaskWorker
from support_grammars import grammar_of
from support_shares import FULL


@pytest.fixture
def worker() -> Iterator[MaskWorker]:
    created = MaskWorker()
    yield created
    created.stop()


def tokens_of(masks: TokenMasks) -> dict[int, list[int]]:
    """Return the allowed tokens by sample index."""
    return {
        sample_index: np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        for sample_index, bits in masks.by_row().items()
    }


def sample_indices(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limits of waiting: a busy machine may stop either thread for longer than milliseconds."""
    for limit in ("MAX_MASK_SECONDS", "MAX_WORKER_START_SECONDS"):
        monkeypatch.setattr(mask_worker_module, limit, 60.0)


def test_each_row_is_that_of_its_grammar(worker: MaskWorker) -> None:
    with worker.for_step(sample_indices(4, 7), [grammar_of(regex="a"), grammar_of(regex="[bc]")]) as future:
        created = future.result()
    assert tokens_of(created) == {4: [97], 7: [98, 99]}


def test_what_was_begun_ahead_is_not_made_again(worker: MaskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_longer(monkeypatch)
    num_rows: list[int] = []
    real = MaskFiller.fill
    monkeypatch.setattr(
        MaskFiller, "fill", lambda self, *arguments: num_rows.append(len(arguments[0])) or real(self, *arguments)
    )
    first, second, third = (grammar_of(regex=regex) for regex in ("a", "[bc]", "d"))
    worker.prefetch([first, second])
    with worker.for_step(sample_indices(0, 1), [first, second]) as future:
        assert tokens_of(future.result()) == {0: [97], 1: [98, 99]}
    with worker.for_step(
        sample_indices(2, 5, 6), [third, second, first]
    ) as future:  # a step later, without a sampled token
        assert tokens_of(future.result()) == {2: [100], 5: [98, 99], 6: [97]}
    assert num_rows == [2, 1]


def test_a_token_ends_what_was_made(worker: MaskWorker) -> None:
    grammar = grammar_of(regex="ab[cd]")
    for token, following in zip(b"ab", ([98], [99, 100]), strict=True):
        with worker.for_step(sample_indices(0), [grammar]) as future:
            future.result()
        grammar.advance(token)
        worker.prefetch([grammar])
        with worker.for_step(sample_indices(3), [grammar]) as future:
            assert tokens_of(future.result()) == {3: following}


def test_leaving_waits_for_the_thread_whatever_happens_meanwhile(
    worker: MaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, thread_names = threading.Event(), []

    def slow(self: MaskFiller, grammars: Sequence[GrammarMatcher], batch: MaskBatch) -> None:
        gate.wait(10)
        thread_names.append(threading.current_thread().name)

    monkeypatch.setattr(MaskFiller, "fill", slow)

    def interrupted() -> None:
        with worker.for_step(sample_indices(0), [grammar_of(regex="a")]):
            threading.Timer(0.05, gate.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert thread_names and thread_names[0].startswith("chairlift-masks")


def test_masks_there_is_no_room_for_fail_before_anything_was_launched_and_not_ahead_of_that(
    worker: MaskWorker,
) -> None:
    huge = grammar_of(regex="a")
    huge.width = 1 << 50
    worker.prefetch([huge])
    with pytest.raises(MemoryError), worker.for_step(sample_indices(0), [huge]):
        pytest.fail("the step was launched")


def test_what_there_is_no_room_for_is_found_out_before_the_launch(
    worker: MaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two batches are merged into memory allocated before the launch; after it nothing may fail."""
    first, second = grammar_of(regex="a"), grammar_of(regex="b")
    worker.prefetch([first])
    created = mask_worker_module.np.empty

    def empty(shape: tuple[int, int], dtype: type) -> np.ndarray:
        if shape[0] == 2:
            raise MemoryError("no room for both")
        return created(shape, dtype)

    monkeypatch.setattr(mask_worker_module.np, "empty", empty)
    with pytest.raises(MemoryError), worker.for_step(sample_indices(0, 1), [first, second]):
        pytest.fail("the step was launched")
    monkeypatch.undo()
    with worker.for_step(sample_indices(0, 1), [first, second]) as future:
        monkeypatch.setattr(mask_worker_module, "np", None)
        assert tokens_of(future.result()) == {0: [97], 1: [98]}


def test_the_thread_outlives_whatever_is_raised_in_it(worker: MaskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def panic(*arguments: object) -> None:
        raise Panic("in the middle of a mask")

    grammars = [grammar_of(regex="a"), grammar_of(regex="b")]
    monkeypatch.setattr(GrammarMatcher, "_finish_mask", panic)
    with worker.for_step(sample_indices(0, 1), grammars) as future:
        assert (future.result().bitmask == -1).all(), "the error shows with the next token"
    monkeypatch.undo()
    with worker.for_step(sample_indices(0), [grammar_of(regex="c")]) as future:
        assert tokens_of(future.result()) == {0: [99]}


EXIT = """
import sys
import numpy as np
from chairlift.engine.structured.mask_worker import MaskWorker
from support_grammars import grammar_of
worker = MaskWorker()
for _ in range(3):
    worker.prefetch([grammar_of(json_schema={"type": "array", "items": {"type": "string"}}) for _ in range(200)])
sys.exit(7)
"""


@pytest.mark.full
def test_a_program_may_end_while_masks_are_made() -> None:
    """The library runs without the GIL, so its output memory must stay alive until it returns."""
    for _ in range(3 if FULL else 1):
        done = subprocess.run([sys.executable, "-c", EXIT], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert done.returncode == 7


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="one processor is beside none")
def test_the_thread_keeps_off_the_processor_that_hands_out_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    thread_cpus: list[frozenset[int]] = []
    real = MaskFiller.fill
    monkeypatch.setattr(MaskFiller, "fill", lambda *arguments: thread_cpus.append(usable_cpus()) or real(*arguments))
    all_cpus = tuple(sorted(usable_cpus()))
    worker = MaskWorker(all_cpus)
    with worker.for_step(sample_indices(0), [grammar_of(regex="a")]) as future:
        future.result()
    worker.stop()
    assert thread_cpus == [frozenset(all_cpus[1:])] and usable_cpus() == frozenset(all_cpus)


@pytest.fixture
def sharing_worker() -> Iterator[MaskWorker]:
    """Make a worker beside a runner that keeps every processor busy."""
    created = MaskWorker(tuple(sorted(usable_cpus())))
    yield created
    created.stop()


def test_who_has_no_processor_of_its_own_has_the_engine_s_thread_make_some(
    sharing_worker: MaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_longer(monkeypatch)
    num_rows: list[int] = []
    real = MaskFiller.fill
    monkeypatch.setattr(
        MaskFiller, "fill", lambda self, *arguments: num_rows.append(len(arguments[0])) or real(self, *arguments)
    )
    grammars = [grammar_of(regex=chr(97 + each)) for each in range(10)]
    sharing_worker.prefetch(grammars)
    order = [7, 0, 9, 1, 2, 8, 3, 4, 6]  # the fifth is not sampled
    with sharing_worker.for_step(sample_indices(*range(9)), [grammars[each] for each in order]) as future:
        assert num_rows == [10 // 2 + mask_worker_module.NUM_EXTRA_WORKER_MASKS]
        assert tokens_of(future.result()) == {sample_index: [97 + each] for sample_index, each in enumerate(order)}
    with sharing_worker.for_step(sample_indices(5), [grammars[5]]) as future:  # a step later
        assert tokens_of(future.result()) == {5: [97 + 5]}
    assert len(num_rows) == 1


def test_masks_that_take_long_are_the_other_thread_s(
    sharing_worker: MaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_worker_module, "MAX_MASK_SECONDS", 0.0)
    thread_names: list[str] = []
    real = GrammarMatcher.fill

    def fill(*arguments: Any) -> None:
        thread_names.append(threading.current_thread().name)
        real(*arguments)

    monkeypatch.setattr(GrammarMatcher, "fill", fill)
    grammars = [grammar_of(regex=chr(97 + each)) for each in range(10)]
    sharing_worker.prefetch(grammars)
    with sharing_worker.for_step(sample_indices(*range(10)), grammars) as future:
        assert tokens_of(future.result()) == {each: [97 + each] for each in range(10)}
    assert thread_names == []


def test_what_goes_wrong_with_a_mask_made_here_is_found_out_with_the_next_token(
    sharing_worker: MaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = [grammar_of(regex=chr(97 + each)) for each in range(8)]
    sharing_worker.prefetch(grammars)

    def panic(*arguments: object) -> None:
        raise BaseException("in the middle of a mask")

    monkeypatch.setattr(GrammarMatcher, "fill", panic)
    wait_longer(monkeypatch)
    with sharing_worker.for_step(sample_indices(*range(8)), grammars) as future:
        bits = future.result().bitmask
    assert (bits[6:] == -1).all() and (bits[:6] != -1).any(axis=1).all()


def test_a_launch_never_waits_for_masks_for_long(sharing_worker: MaskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    real = MaskFiller.fill
    monkeypatch.setattr(MaskFiller, "fill", lambda self, *arguments: gate.wait(10) and real(self, *arguments))
    with sharing_worker.for_step(sample_indices(0), [grammar_of(regex="a")]) as future:
        assert not future.wait_briefly()
        gate.set()
        assert tokens_of(future.result()) == {0: [97]}
        assert future.wait_briefly()


def test_who_has_a_processor_left_or_a_step_in_flight_shares_nothing() -> None:
    all_cpus = tuple(sorted(usable_cpus()))
    assert MaskWorker(all_cpus).uses_engine_thread
    assert not MaskWorker().uses_engine_thread and not MaskWorker(all_cpus, runner_idles=False).uses_engine_thread
    if len(all_cpus) > 1:
        assert not MaskWorker(all_cpus[:-1]).uses_engine_thread


def test_what_is_left_is_made_only_for_who_draws(sharing_worker: MaskWorker) -> None:
    grammars = [grammar_of(regex=chr(97 + each)) for each in range(10)]
    sharing_worker.prefetch(grammars)
    with sharing_worker.for_step(sample_indices(0), grammars[:1]) as future:
        assert tokens_of(future.result()) == {0: [97]}
    assert grammars[9].pending_mask is None, "its request was aborted"
