"""ProcessTimeLimit: processor time counts, and time without any; delays by other programs do not."""

from chairlift.core.clock import FakeClock
from chairlift.engine.structured.process_time_limit import ProcessTimeLimit


class Accounts:
    """The processor time of a process, set by a test."""

    def __init__(self, used: float | None = 7.0) -> None:
        self.used = used

    def read(self, pid: int) -> float | None:
        assert pid == 42
        return self.used


def limit_of(accounts: Accounts, clock: FakeClock) -> ProcessTimeLimit:
    return ProcessTimeLimit(42, cpu_seconds=0.8, idle_seconds=5.0, read=accounts.read, now=clock.now)


def test_a_process_that_runs_a_hundredth_of_the_time_has_all_its_processor_time() -> None:
    accounts, clock = Accounts(), FakeClock()
    limit = limit_of(accounts, clock)
    for _ in range(79):
        clock.advance(1.0)
        accounts.used = (accounts.used or 0.0) + 0.01
        assert not limit.is_exceeded()
    accounts.used = 7.8
    assert limit.is_exceeded()


def test_a_process_that_does_nothing_exceeds_the_idle_time_and_an_ended_one_too() -> None:
    for used in (7.0, None):
        accounts, clock = Accounts(), FakeClock()
        limit = limit_of(accounts, clock)
        accounts.used = used
        clock.advance(4.9)
        assert not limit.is_exceeded()
        clock.advance(0.1)
        assert limit.is_exceeded()


def test_without_accounts_of_the_kernel_the_time_counts() -> None:
    clock = FakeClock(start=100.0)
    limit = limit_of(Accounts(None), clock)
    clock.advance(0.7)
    assert not limit.is_exceeded()
    clock.advance(0.2)
    assert limit.is_exceeded()
