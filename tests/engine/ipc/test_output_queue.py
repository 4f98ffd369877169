"""OutputQueue keeps outputs in order; the thread that adds to a long queue waits shortly for its reader."""

import threading

import pytest

from chairlift.core.engine_output import EngineOutput
from chairlift.engine.ipc import output_queue as module
from chairlift.engine.ipc.output_queue import OutputQueue


def step(*tokens: int) -> list[EngineOutput]:
    return [EngineOutput("r", (token,)) for token in tokens]


def test_outputs_come_out_in_order_and_once() -> None:
    queue = OutputQueue()
    assert not queue and len(queue) == 0
    queue.put(step(1, 2))
    queue.put(step(3))
    assert queue and len(queue) == 3
    assert [output.token_ids for output in queue.take()] == [(1,), (2,), (3,)]
    assert not queue and len(queue) == 0 and list(queue.take()) == []


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the timeout of each wait of the engine, without waiting."""
    timeouts: list[float] = []
    monkeypatch.setattr(module, "HIGH_WATER_MARK", 10)
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout: timeouts.append(timeout))
    return timeouts


def test_a_client_that_keeps_up_causes_no_wait(waits: list[float]) -> None:
    queue = OutputQueue()
    for _ in range(100):
        queue.put(step(*range(10)))
        queue.throttle(10)
        assert len(list(queue.take())) == 10
    assert not waits


def test_a_long_one_is_waited_for_by_what_is_added_and_never_for_long(waits: list[float]) -> None:
    queue = OutputQueue()
    for count in (11, 1, 30, 1000):
        queue.put(step(*range(count)))
        queue.throttle(count)
    assert waits == [pytest.approx(0.011), 0.001, pytest.approx(0.03), module.LONGEST_WAIT_SECONDS]
    list(queue.take())
    queue.throttle(5)
    assert len(waits) == 4


def test_the_engine_stops_waiting_for_a_client_that_takes_nothing(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TOTAL_WAIT_SECONDS", 0.25)
    queue = OutputQueue()

    def work() -> None:
        for _ in range(20):
            queue.put(step(*range(100)))
            queue.throttle(100)

    work()
    assert waits == [module.LONGEST_WAIT_SECONDS] * 5
    assert len(list(queue.take())) == 2000
    work()
    assert len(waits) == 10


def test_taking_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HIGH_WATER_MARK", 1)
    monkeypatch.setattr(module, "SECONDS_AN_OUTPUT", 60.0)
    monkeypatch.setattr(module, "LONGEST_WAIT_SECONDS", 60.0)
    monkeypatch.setattr(module, "MAX_TOTAL_WAIT_SECONDS", 60.0)
    queue = OutputQueue()
    waiting, returned = threading.Event(), threading.Event()

    def engine() -> None:
        queue.put(step(1, 2))
        waiting.set()
        queue.throttle(2)
        returned.set()

    thread = threading.Thread(target=engine, daemon=True)
    thread.start()
    assert waiting.wait(30.0) and not returned.wait(0.05)
    assert len(list(queue.take())) == 2
    assert returned.wait(30.0)
