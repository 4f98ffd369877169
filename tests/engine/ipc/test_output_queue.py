"""A backlog keeps news in order; who adds to a long one is held up, shortly, until somebody has taken it."""

import threading

import pytest

from chairlift.core.request import EngineOutput
from chairlift.engine.ipc import output_queue as module
from chairlift.engine.ipc.output_queue import OutputQueue


def step(*tokens: int) -> list[EngineOutput]:
    return [EngineOutput("r", (token,)) for token in tokens]


def test_news_come_out_in_order_and_once() -> None:
    backlog = OutputQueue()
    assert not backlog and len(backlog) == 0
    backlog.put(step(1, 2))
    backlog.put(step(3))
    assert backlog and len(backlog) == 3
    assert [output.token_ids for output in backlog.take()] == [(1,), (2,), (3,)]
    assert not backlog and len(backlog) == 0 and list(backlog.take()) == []


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the engine was ready to wait, each time; nobody waits in fact."""
    seen: list[float] = []
    monkeypatch.setattr(module, "HIGH_WATER_MARK", 10)
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout: seen.append(timeout))
    return seen


def test_nobody_waits_for_a_client_that_keeps_up(waits: list[float]) -> None:
    backlog = OutputQueue()
    for _ in range(100):
        backlog.put(step(*range(10)))
        backlog.throttle(10)
        assert len(list(backlog.take())) == 10
    assert not waits


def test_a_long_one_is_waited_for_by_what_is_added_and_never_for_long(waits: list[float]) -> None:
    backlog = OutputQueue()
    for count in (11, 1, 30, 1000):
        backlog.put(step(*range(count)))
        backlog.throttle(count)
    assert waits == [pytest.approx(0.011), 0.001, pytest.approx(0.03), module.LONGEST_WAIT_SECONDS]
    list(backlog.take())
    backlog.throttle(5)
    assert len(waits) == 4


def test_who_takes_nothing_is_not_waited_for_any_more_until_it_does(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TOTAL_WAIT_SECONDS", 0.25)
    backlog = OutputQueue()

    def work() -> None:
        for _ in range(20):
            backlog.put(step(*range(100)))
            backlog.throttle(100)

    work()
    assert waits == [module.LONGEST_WAIT_SECONDS] * 5
    assert len(list(backlog.take())) == 2000
    work()
    assert len(waits) == 10


def test_taking_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HIGH_WATER_MARK", 1)
    monkeypatch.setattr(module, "SECONDS_AN_OUTPUT", 60.0)
    monkeypatch.setattr(module, "LONGEST_WAIT_SECONDS", 60.0)
    monkeypatch.setattr(module, "MAX_TOTAL_WAIT_SECONDS", 60.0)
    backlog = OutputQueue()
    waiting, gone = threading.Event(), threading.Event()

    def engine() -> None:
        backlog.put(step(1, 2))
        waiting.set()
        backlog.throttle(2)
        gone.set()

    thread = threading.Thread(target=engine, daemon=True)
    thread.start()
    assert waiting.wait(30.0) and not gone.wait(0.05)
    assert len(list(backlog.take())) == 2
    assert gone.wait(30.0)
