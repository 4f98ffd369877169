"""PauseHolders: the first holder pauses, the last one lets go."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chairlift.llm.transformers_compat.pause import PauseHolders


class Engine:
    def __init__(self) -> None:
        self.log: list[str] = []

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.log.append("paused")
        yield
        self.log.append("resumed")


def test_the_engine_goes_on_when_the_last_holder_leaves() -> None:
    engine, holders = Engine(), PauseHolders()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with holders.hold(engine.paused):
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=other)
    with holders.hold(engine.paused):
        thread.start()
        assert inside.wait(20) and holders.is_held_by_this_thread
        with holders.hold(engine.paused):
            assert engine.log == ["paused"]
    assert engine.log == ["paused"] and not holders.is_held_by_this_thread
    leave.set()
    thread.join(20)
    assert engine.log == ["paused", "resumed"]
    with holders.hold(engine.paused):
        assert engine.log[2:] == ["paused"]


def test_an_engine_that_cannot_be_paused_has_no_holder() -> None:
    holders = PauseHolders()

    @contextmanager
    def fails() -> Iterator[None]:
        raise RuntimeError("dead")
        yield

    with pytest.raises(RuntimeError), holders.hold(fails):
        pass
    assert not holders.is_held_by_this_thread
    with pytest.raises(ValueError, match="in the block"), holders.hold(Engine().paused):
        raise ValueError("in the block")
    assert not holders.is_held_by_this_thread
