"""admission.py: the expected wait, from the measured rate at which requests start."""

import math
from collections import deque

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import Overloaded
from chairlift.web.admission import RECENT_SECONDS, AdmissionController, AdmissionLimits, Permit
from chairlift.web.rate_estimators import FORGET_SECONDS, MAX_RATE_EVENTS, MIN_RATE_EVENTS, RATE_SECONDS, RateEstimator
from support_admission import admission_with_rate, counters


def test_nothing_is_expected_before_the_pace_is_known() -> None:
    admission = AdmissionController(AdmissionLimits(max_queue_wait=0.001, always_admitted=0), FakeClock())
    for _ in range(100):
        admission.admit(1, timeout=0.001)
    assert admission.expected_wait == 0.0


def test_the_expected_wait_is_the_line_by_its_pace() -> None:
    admission, _ = admission_with_rate(1.0, waiting=3)
    assert admission.expected_wait == pytest.approx(3.0)


def test_a_request_that_would_wait_beyond_the_limit_is_rejected_with_a_retry_after() -> None:
    admission, _ = admission_with_rate(2.0, limits=AdmissionLimits(max_queue_wait=25, always_admitted=0), waiting=12)
    admission.admit(1)
    with pytest.raises(Overloaded, match=r"the expected queue wait is 26\.0 s, the limit is 25 s") as caught:
        admission.admit(1)
    assert caught.value.details["retry_after"] == pytest.approx(1.0)


def test_few_may_wait_however_long_it_takes() -> None:
    admission, _ = admission_with_rate(3.0, limits=AdmissionLimits(max_queue_wait=1, always_admitted=4), waiting=2)
    admission.admit(1)
    with pytest.raises(Overloaded, match=r"wait is 9\.0 s, the limit is 7 s"):
        admission.admit(1, timeout=7)
    admission.admit(1)
    with pytest.raises(Overloaded, match=r"wait is 12\.0 s, the limit is 1 s"):
        admission.admit(1)


def test_whether_one_would_be_let_in_can_be_asked_without_coming() -> None:
    admission, _ = admission_with_rate(2.0, limits=AdmissionLimits(max_queue_wait=5, always_admitted=0), waiting=2)
    admission.check()
    assert (admission.waiting_requests, admission.open_requests) == (2, MIN_RATE_EVENTS + 2)
    admission.admit(1)
    with pytest.raises(Overloaded, match=r"wait is 6\.0 s, the limit is 5 s"):
        admission.check()
    with pytest.raises(Overloaded, match=r"prompt tokens wait and this request has 1000000"):
        admission.check(1_000_000)


def test_who_would_wait_longer_than_its_own_timeout_is_refused() -> None:
    admission, _ = admission_with_rate(2.0, waiting=5)
    admission.admit(1, timeout=10.5).end()
    with pytest.raises(Overloaded, match=r"wait is 10\.0 s, the limit is 3\.5 s") as caught:
        admission.admit(1, timeout=3.5)
    assert caught.value.details["retry_after"] == pytest.approx(6.5)


SLOTS = 256


def admission_with_full_engine(
    limits: AdmissionLimits | None = None,
) -> tuple[AdmissionController, FakeClock, list[Permit], list[Permit]]:
    """Return the queue of an engine that filled its slots quickly and starts no more requests.

    Returns the controller, its clock, the waiting permits and the running permits.
    """
    clock = FakeClock()
    admission = AdmissionController(limits or AdmissionLimits(max_queue_wait=3, always_admitted=0), clock)
    admission.max_running = SLOTS
    waiting, running = [], []
    for _ in range(SLOTS):
        running.append(admission.admit(1))
        clock.advance(0.001)
        running[-1].mark_running()
    for _ in range(SLOTS):
        waiting.append(admission.admit(1))
    admission.engine_counts = SLOTS, SLOTS
    assert admission.waiting_requests == admission.running_requests == SLOTS and admission.expected_wait == 0.0
    return admission, clock, waiting, running


def make_room(waiting: list[Permit], running: list[Permit], count: int) -> None:
    """End `count` running requests, and start as many waiting ones."""
    for _ in range(min(count, len(waiting))):
        running.pop(0).end()
        running.append(waiting.pop(0))
        running[-1].mark_running()


def test_how_fast_an_engine_was_filled_is_not_how_fast_others_make_room() -> None:
    admission, clock, waiting, running = admission_with_full_engine()
    num_rejected = 0
    for _ in range(40):  # in each tenth of a second 10 requests end and 100 arrive
        clock.advance(0.1)
        make_room(waiting, running, 10)
        for _ in range(100):
            try:
                waiting.append(admission.admit(1))
            except Overloaded:
                num_rejected += 1
    assert num_rejected > 0 and admission.waiting_requests <= 256 + 3.2 * 100
    assert admission.expected_wait == pytest.approx(admission.waiting_requests / 100, rel=0.2)


def test_with_free_slots_no_request_has_to_finish_first() -> None:
    """As when a burst has more prompt tokens than a step may have, and outputs are long."""
    clock = FakeClock()
    admission = AdmissionController(AdmissionLimits(max_queue_wait=2, always_admitted=0), clock)
    admission.max_running = SLOTS
    waiting: list[Permit] = []
    for number in range(120):  # 60 arrive per second, and 40 start
        clock.advance(1 / 60)
        waiting.append(admission.admit(1))
        admission.engine_counts = len(waiting), admission.running_requests
        if number % 3:
            waiting.pop(0).mark_running()
    assert admission.running_requests > 70 and admission.waiting_requests > 30
    assert admission.expected_wait == pytest.approx(admission.waiting_requests / 40, rel=0.3)


def test_a_burst_to_an_engine_that_has_room_is_taken() -> None:
    clock = FakeClock()
    admission = AdmissionController(AdmissionLimits(), clock)
    admission.max_running = SLOTS
    running = deque[Permit]()
    for _ in range(100):  # ten arrive per second, and run after 0.3 s
        clock.advance(0.1)
        permit = admission.admit(1)
        clock.advance(0.3)
        permit.mark_running()
        running.append(permit)
        if len(running) > 7:
            running.popleft().end()
    assert len([admission.admit(1) for _ in range(100)]) == 100
    assert admission.expected_wait == pytest.approx(0.3)


def test_where_the_api_server_is_slow_recent_waits_are_expected_for_a_while() -> None:
    clock = FakeClock()
    admission = AdmissionController(AdmissionLimits(max_queue_wait=2, always_admitted=4), clock)
    for _ in range(20):
        permit = admission.admit(1)
        clock.advance(5.0)
        permit.mark_running()
        permit.end()
    for _ in range(4):
        admission.admit(1)
    with pytest.raises(Overloaded, match=r"wait is 5\.0 s, the limit is 2 s"):
        admission.admit(1)
    clock.advance(RECENT_SECONDS + 0.1)
    admission.admit(1)


def test_more_requests_than_slots_wait_before_the_engine_reports_it() -> None:
    clock = FakeClock()
    admission = AdmissionController(AdmissionLimits(max_queue_wait=3, always_admitted=0), clock)
    admission.max_running = SLOTS
    for _ in range(SLOTS):
        admission.admit(1)
        clock.advance(0.0001)
    assert admission.expected_wait == 0.0
    beyond = [admission.admit(1) for _ in range(30)]
    clock.advance(0.4)
    assert admission.expected_wait == pytest.approx(len(beyond) * 0.4 / MIN_RATE_EVENTS)
    clock.advance(10.0)
    with pytest.raises(Overloaded, match="server overloaded: the expected queue wait is"):
        admission.admit(1)


def test_a_queue_that_no_request_leaves_admits_none_after_a_while() -> None:
    admission, clock, _, _ = admission_with_full_engine()
    admission.admit(1)
    clock.advance(0.05)
    admission.admit(1)
    clock.advance(2.0)
    with pytest.raises(Overloaded, match="server overloaded: the expected queue wait is"):
        admission.admit(1)


def test_a_pause_counts_as_soon_as_it_is_there() -> None:
    admission, clock, waiting, running = admission_with_full_engine(AdmissionLimits(max_queue_wait=60))
    for _ in range(MIN_RATE_EVENTS):
        clock.advance(0.01)
        make_room(waiting, running, 1)
    before = admission.expected_wait
    clock.advance(0.01 * MIN_RATE_EVENTS)
    assert admission.expected_wait == pytest.approx(2 * before)


def test_who_leaves_the_line_makes_no_room() -> None:
    admission, clock, waiting, _ = admission_with_full_engine()
    clock.advance(1.0)
    before = admission.expected_wait
    for permit in waiting[:128]:
        permit.end()
    assert admission.expected_wait == pytest.approx(before / 2)


def test_an_engine_that_dies_makes_no_room() -> None:
    admission, clock, waiting, running = admission_with_full_engine()
    clock.advance(1.0)
    before = admission.expected_wait
    for permit in running:
        permit.end(makes_room=False)
    admission.max_running = 0  # as if all slots were full again at once
    assert admission.expected_wait == pytest.approx(before)
    for permit in waiting:
        permit.end(makes_room=False)
    assert admission.engine_counts == (0, 0)


def test_who_was_worked_for_makes_room_though_its_client_still_reads() -> None:
    admission, clock, _, running = admission_with_full_engine()
    clock.advance(1.0)
    before = admission.expected_wait
    for permit in running[: 2 * MIN_RATE_EVENTS]:
        permit.mark_finished()
        permit.mark_finished()
    assert (admission.running_requests, admission.open_requests) == (SLOTS - 2 * MIN_RATE_EVENTS, 2 * SLOTS)
    assert admission.expected_wait == pytest.approx(before / 2)
    for permit in running:
        permit.end()
    assert admission.running_requests == 0


def test_those_who_end_together_make_no_fast_line() -> None:
    """A batch that starts at once ends at once, and then no request starts for a while."""
    admission, clock, waiting, running = admission_with_full_engine(
        AdmissionLimits(max_waiting_requests=10**6, max_queue_wait=10**6)
    )
    rates = []
    for number in range(20):
        waiting += [admission.admit(1) for _ in range(256)]
        for _ in range(30):
            clock.advance(0.05)
            if number > 1:
                rates.append(admission.waiting_requests / admission.expected_wait)
        make_room(waiting, running, 256)
        rates.append(admission.waiting_requests / admission.expected_wait)
    assert all(0.5 * 256 / 1.5 <= each <= 2 * 256 / 1.5 for each in rates)
    assert rates[-1] == pytest.approx(256 / 1.5, rel=0.1)


@pytest.mark.parametrize(("pause", "is_known"), [(FORGET_SECONDS - 1, True), (FORGET_SECONDS + 1, False)])
def test_the_next_line_knows_the_pace_of_the_last_one_for_some_minutes(pause: float, is_known: bool) -> None:
    admission, clock, waiting, running = admission_with_full_engine(AdmissionLimits(max_queue_wait=10**6))
    for _ in range(20):
        clock.advance(0.1)
        make_room(waiting, running, 1)
    admission.engine_counts = (0, 0)
    admission.max_running = 10**6
    assert admission.expected_wait < 3.0
    clock.advance(pause)
    admission.max_running = SLOTS
    admission.engine_counts = SLOTS, SLOTS
    assert admission.expected_wait == (pytest.approx(admission.waiting_requests * 0.1, rel=0.1) if is_known else 0.0)


def test_what_an_engine_has_said_is_forgotten_when_nothing_is_open() -> None:
    admission, clock, waiting, running = admission_with_full_engine()
    for permit in [*waiting, *running]:
        permit.end()
    clock.advance(3600)
    assert admission.engine_counts == (0, 0)
    assert len([admission.admit(1) for _ in range(200)]) == 200 and admission.expected_wait == 0.0


def test_an_empty_queue_admits_all_requests_whatever_the_engine_reported() -> None:
    clock = FakeClock()
    admission = AdmissionController(AdmissionLimits(max_queue_wait=0, always_admitted=0), clock)
    for _ in range(3):
        admission.engine_counts = (5, 256)
        clock.advance(1000)
        admission.admit(1, timeout=0.001).mark_running()
    assert counters(admission) == (0, 0, 3)


def test_a_pace_is_measured_over_a_bounded_time_and_memory() -> None:
    estimator, now = RateEstimator(), 0.0
    estimator.run(now, matters=True)
    for gap in (0.5, 0.05, 0.001):
        for _ in range(2 * MAX_RATE_EVENTS):
            now += gap
            estimator.record(now)
        assert estimator.rate(now) == pytest.approx(1 / gap, rel=0.1)
    assert estimator.rate(now + RATE_SECONDS) < MAX_RATE_EVENTS / RATE_SECONDS


def test_what_happens_while_it_does_not_matter_says_nothing() -> None:
    estimator = RateEstimator()
    for number in range(100):
        estimator.record(float(number))
    estimator.run(100.0, matters=True)
    assert estimator.rate(100.0) == math.inf and estimator.rate(101.0) == MIN_RATE_EVENTS
