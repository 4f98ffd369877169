"""EnginePriority: what other programs and clients do to an engine decides its priority."""

import os
from dataclasses import dataclass, field

import pytest

from chairlift.core.host.process_activity import ThreadTimes, cpu_seconds
from chairlift.engine.ipc import engine_priority
from chairlift.engine.ipc.engine_priority import (
    FIRST_CALM_SECONDS,
    MAX_CALM_SECONDS,
    NICENESS,
    RETRY_SECONDS,
    EnginePriority,
)


@pytest.fixture(autouse=True)
def _checks_come_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_priority, "CHECK_SECONDS", 1.0)


@dataclass
class FakeEngine:
    calls: list[int] = field(default_factory=list)
    fails: bool = False

    def move_to_new_thread(self, niceness: int) -> None:
        if self.fails:
            raise RuntimeError("can't start new thread")
        self.calls.append(niceness)


class Machine:
    """An engine whose thread runs and waits as the test says; a second passes between two checks."""

    def __init__(self) -> None:
        self.engine, self.now = FakeEngine(), 100.0
        self.times: list[ThreadTimes] = []
        self.client_seconds = 50.0  # of the processes' past
        self.priority = EnginePriority(
            self.engine, read=lambda: self.times, client_seconds=lambda: self.client_seconds, now=lambda: self.now
        )
        self.check(run=1.0)

    def check(self, *, run: float, delay: float = 0.0, client: float = 0.0, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.client_seconds += client
            self.times = [ThreadTimes(run, delay), ThreadTimes(run + delay, 0.0)]
            self.priority.check()

    def is_low_after(self, seconds: int) -> bool:
        """Whether the priority is low only after so many calm seconds."""
        self.check(run=1.0, seconds=seconds - 1)
        was_low = self.priority.is_low
        self.check(run=1.0)
        return self.priority.is_low and not was_low


def test_beside_other_programs_the_engine_has_the_priority_of_all_and_later_less_again() -> None:
    machine = Machine()
    assert machine.engine.calls == [NICENESS] and machine.priority.is_low
    machine.check(run=0.1, delay=0.9)
    assert machine.engine.calls == [NICENESS, 0] and not machine.priority.is_low
    machine.check(run=0.6, delay=0.4, seconds=300)
    machine.check(run=0.7, delay=0.3, seconds=300)
    assert machine.engine.calls == [NICENESS, 0], "the same program costs less now, but it still runs"
    assert machine.is_low_after(int(FIRST_CALM_SECONDS) + 1)
    assert machine.engine.calls == [NICENESS, 0, NICENESS]


def test_the_time_of_clients_is_no_delay() -> None:
    machine = Machine()
    machine.check(run=0.1, delay=0.9, client=0.8, seconds=300)
    assert machine.engine.calls == [NICENESS]
    machine.check(run=0.1, delay=0.9, client=0.3)
    assert machine.engine.calls == [NICENESS, 0]
    machine.check(run=0.1, delay=0.9, client=0.8, seconds=int(FIRST_CALM_SECONDS) + 1)
    assert machine.engine.calls == [NICENESS, 0, NICENESS]


def test_an_engine_that_hardly_computes_says_nothing() -> None:
    machine = Machine()
    machine.check(run=0.01, delay=0.05, seconds=300)
    machine.times = []
    machine.now += 1.0
    machine.priority.check()
    assert machine.engine.calls == [NICENESS]


def test_a_priority_that_was_lowered_too_early_is_lowered_later_the_next_time() -> None:
    machine, seconds = Machine(), int(FIRST_CALM_SECONDS)
    machine.check(run=0.1, delay=0.9)
    while seconds < MAX_CALM_SECONDS:
        assert machine.is_low_after(seconds + 1)
        machine.check(run=0.1, delay=0.9)
        seconds *= 2
    for _ in range(2):
        assert machine.is_low_after(int(MAX_CALM_SECONDS) + 1)
        machine.check(run=0.1, delay=0.9)
    assert machine.is_low_after(int(MAX_CALM_SECONDS) + 1)
    machine.check(run=1.0, seconds=int(MAX_CALM_SECONDS) + 1)
    machine.check(run=0.1, delay=0.9)
    assert machine.is_low_after(int(FIRST_CALM_SECONDS) + 1)


def test_checks_come_once_a_second() -> None:
    machine = Machine()
    machine.times = [ThreadTimes(0.1, 0.9)]
    machine.now += 0.5
    machine.priority.check()
    assert machine.priority.is_low
    machine.now += 0.5
    machine.priority.check()
    assert not machine.priority.is_low


def test_without_a_new_thread_the_priority_stays_and_is_changed_later(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.engine.fails = True
    machine.check(run=0.1, delay=0.9, seconds=int(RETRY_SECONDS) - 1)
    assert machine.priority.is_low and caplog.text.count("stays as it is: can't start new thread") == 1
    machine.engine.fails = False
    machine.check(run=0.1, delay=0.9, seconds=2)
    assert not machine.priority.is_low and machine.engine.calls == [NICENESS, 0]


def test_the_time_of_the_client_is_that_of_this_thread_and_of_the_parent_process() -> None:
    before = engine_priority._seconds_of_client()
    sum(range(1_000_000))
    grown = engine_priority._seconds_of_client() - before
    assert grown > 0.005
    assert before >= (cpu_seconds(os.getppid()) or 0.0) - 1.0
