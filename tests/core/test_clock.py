"""SystemClock never goes back; ThreadCpuClock is of the thread; FakeClock moves only by advance()."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from chairlift.core.clock import Clock, FakeClock, SystemClock, ThreadCpuClock


def test_the_system_clock_never_runs_back() -> None:
    clock: Clock = SystemClock()
    times = [clock.now() for _ in range(1000)]
    assert times == sorted(times)


def test_the_processor_time_is_that_of_the_calling_thread() -> None:
    clock: Clock = ThreadCpuClock()
    before = clock.now()
    sum(range(100_000))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(clock.now).result() < before < clock.now()  # a new thread has not run yet


def test_the_fake_clock_stands_still_until_it_is_moved() -> None:
    clock: Clock = FakeClock(5.0)
    assert clock.now() == clock.now() == 5.0


def test_the_fake_clock_moves_by_the_given_seconds() -> None:
    clock = FakeClock()
    clock.advance(1.5)
    clock.advance(0)
    clock.advance(0.25)
    assert clock.now() == 1.75


@pytest.mark.parametrize("seconds", [-1e-9, -1.0, float("nan")])
def test_time_cannot_go_back(seconds: float) -> None:
    clock = FakeClock()
    with pytest.raises(AssertionError, match="cannot go back"):
        clock.advance(seconds)
    assert clock.now() == 0.0
