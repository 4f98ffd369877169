"""StepThreadCount: fewer threads while other programs displace them, all of them again when these have ended."""

from collections.abc import Sequence

import pytest

from chairlift.core.host.process_activity import ThreadTimes
from chairlift.model.device.step_thread_count import StepThreadCount


class Machine:
    """Processors that some programs share with the threads; a step of 50 ms lasts longer for each of them."""

    def __init__(self, most: int) -> None:
        self.now = 100.0
        self.num_displaced, self.share = 0, 0.0
        self.applied: list[int] = []
        self.num_reads = 0
        self._read_at = self.now
        self.threads = StepThreadCount(most, read=self._read, now=lambda: self.now, apply=self.applied.append)

    def run(self, seconds: float, step: float = 0.05) -> int:
        """Compute steps for a time; return the number of threads after it."""
        end = self.now + seconds
        while self.now < end:
            self.threads.begin_step()
            self.now += step
            self.threads.end_step()
        return self.threads.count

    def _read(self) -> Sequence[ThreadTimes]:
        seconds, self._read_at = self.now - self._read_at, self.now
        self.num_reads += 1
        shares = [self.share if index < self.num_displaced else 0.05 for index in range(self.threads.count)]
        return [ThreadTimes(seconds * (1 - share), seconds * share) for share in shares]


@pytest.mark.parametrize("most", [2, 4, 16, 96])
def test_an_idle_machine_keeps_all_threads_and_is_measured_four_times_a_second(most: int) -> None:
    machine = Machine(most)
    assert machine.run(10.0) == most and machine.applied == []
    assert machine.num_reads <= 2 * 4 * 10


def test_one_thread_is_never_measured() -> None:
    machine = Machine(1)
    machine.num_displaced, machine.share = 1, 0.8
    assert machine.run(10.0) == 1 and machine.num_reads == 0 and machine.applied == []


@pytest.mark.parametrize(
    ("most", "num_displaced", "share", "expected"),
    [(2, 2, 0.5, 1), (2, 1, 0.7, 1), (8, 1, 0.8, 7), (8, 4, 0.7, 5), (8, 8, 0.8, 2), (8, 8, 0.25, 6), (8, 1, 3.0, 7)],
)
def test_as_many_threads_are_given_up_as_processors_are_used(
    most: int, num_displaced: int, share: float, expected: int
) -> None:
    machine = Machine(most)
    machine.num_displaced, machine.share = num_displaced, share
    machine.run(0.4)
    assert machine.applied[0] == expected


@pytest.mark.parametrize(("most", "num_displaced", "share"), [(2, 1, 0.5), (2, 2, 0.35), (8, 1, 0.2), (8, 8, 0.19)])
def test_delays_that_cost_less_than_a_thread_change_nothing(most: int, num_displaced: int, share: float) -> None:
    machine = Machine(most)
    machine.num_displaced, machine.share = num_displaced, share
    assert machine.run(30.0) == most and machine.applied == []


def test_a_thread_that_never_had_a_processor_counts_as_delayed_for_all_of_its_time() -> None:
    machine = Machine(2)
    machine.num_displaced, machine.share = 2, 1.3  # it was also delayed between the steps
    machine.run(0.4)
    assert machine.applied == [1]


def test_a_thread_that_is_still_delayed_stays_alone() -> None:
    machine = Machine(2)
    machine.num_displaced, machine.share = 8, 0.8
    assert machine.run(120.0) == 1 and machine.applied == [1]


def test_all_threads_come_back_when_the_other_programs_have_ended() -> None:
    machine = Machine(8)
    machine.num_displaced, machine.share = 8, 0.8
    assert machine.run(5.0) == 1
    machine.num_displaced = 0
    assert machine.run(1.5) == 1
    assert machine.run(10.0) == 8 and machine.applied == [2, 1, 2, 4, 8]


def test_trials_become_rare_where_more_threads_are_displaced_again_and_again() -> None:
    machine = Machine(2)
    machine.share = 0.8
    for _ in range(6_000):  # five minutes, in which only a second thread is displaced
        machine.num_displaced = 1 if machine.threads.count > 1 else 0
        machine.run(0.05)
    assert 5 <= machine.applied.count(2) <= 8
    machine.num_displaced = 0
    assert machine.run(70.0) == 2


def test_a_long_step_is_measured_in_its_midst() -> None:
    machine = Machine(4)
    machine.num_displaced, machine.share = 4, 0.8
    machine.threads.begin_step()
    for _ in range(30):  # layers
        machine.now += 0.2
        machine.threads.check_in_step()
    assert machine.applied == [1] and machine.num_reads <= 30
    machine.num_displaced = 0
    for _ in range(60):
        machine.now += 0.2
        machine.threads.check_in_step()
    machine.threads.end_step()
    assert machine.threads.count == 4, "and they come back within it"


def test_all_threads_are_back_when_it_is_closed() -> None:
    machine = Machine(4)
    machine.threads.close()
    machine.num_displaced, machine.share = 4, 0.8
    machine.run(5.0)
    machine.threads.close()
    machine.threads.close()
    assert machine.applied == [1, 4]


def test_expensive_readings_are_rare() -> None:
    machine = Machine(2)
    read = machine.threads._read

    def slow_read() -> Sequence[ThreadTimes]:
        machine.now += 0.01  # a thousand threads
        return read()

    machine.threads._read = slow_read
    machine.run(60.0)
    assert machine.num_reads <= 2 * 60 / 4 + 2


def test_short_steps_are_measured_together() -> None:
    machine = Machine(2)
    machine.num_displaced, machine.share = 2, 0.8
    machine.run(0.018, step=0.001)
    assert machine.applied == []
    machine.run(0.01, step=0.001)
    assert machine.applied == [1]


def test_threads_that_cannot_be_started_leave_the_number_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def fail(count: int) -> None:
        raise RuntimeError("cannot start 2 threads")

    machine = Machine(2)
    machine.threads._apply = fail
    machine.num_displaced, machine.share = 2, 0.8
    assert machine.run(1.0) == 2 and "steps keep 2 of 2 threads: cannot start 2 threads" in caplog.text
