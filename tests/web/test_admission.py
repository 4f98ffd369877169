"""Line: it is counted exactly, and its pace is measured while there is one."""

import math
from collections import deque

import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import floats, integers, just, none, one_of

from chairlift.core.clock import FakeClock
from chairlift.core.errors import ConfigError, Overloaded
from chairlift.web.admission import (
    DECAY_SECONDS,
    FORGET_SECONDS,
    INTERVAL_SECONDS_PER_REJECTION,
    MAX_INTERVAL_SECONDS,
    MAX_RATE_EVENTS,
    MAX_RETRY_SECONDS,
    MIN_RATE_EVENTS,
    RATE_SECONDS,
    RECENT_SECONDS,
    REJECTION_CACHE_SECONDS,
    AdmissionController,
    AdmissionLimits,
    Permit,
    RateEstimator,
)


def counters(line: AdmissionController) -> tuple[int, int, int]:
    return line.waiting_requests, line.waiting_tokens, line.open_requests


def test_a_permit_counts_until_it_starts_and_until_it_ends() -> None:
    line, used = AdmissionController(AdmissionLimits(), FakeClock()), []
    permit = line.admit(7, on_end=used.append)
    assert counters(line) == (1, 7, 1)
    permit.mark_running()
    assert counters(line) == (0, 0, 1) and used == []
    permit.end(12)
    assert counters(line) == (0, 0, 0) and used == [12]


def test_a_request_admitted_early_may_be_rejected_for_its_expected_wait() -> None:
    line, _ = paced(1.0, waiting=4)
    used: list[int] = []
    permit = line.admit(0)
    with pytest.raises(Overloaded, match=r"wait is 4.0 s, the limit is 3.5 s"):
        permit.attach(3.5, used.append)
    permit.attach(4.5, used.append)
    permit.attach(None, used.append)
    before = counters(line)
    permit.end(9)
    assert used == [9] and counters(line) == (before[0] - 1, before[1], before[2] - 1)


def test_of_a_crowd_that_was_let_in_at_once_the_first_may_stay() -> None:
    line, _ = paced(0.1, waiting=1)
    crowd = [line.admit(0) for _ in range(24)]
    stayed = []
    for number, permit in enumerate(crowd):
        try:
            permit.attach(0.85, lambda used: None)
            stayed.append(number)
        except Overloaded:
            permit.end()
    assert stayed == list(range(8)), "who came behind them does not count against them"


def test_an_empty_queue_admits_a_request_of_any_timeout() -> None:
    line = AdmissionController(AdmissionLimits(), FakeClock())
    line.admit(0).attach(1e-9, lambda used: None)


def test_refusals_space_the_news_of_streams_and_their_end_brings_them_back() -> None:
    clock = FakeClock()
    line = AdmissionController(AdmissionLimits(max_waiting_requests=1), clock)
    line.admit(1)
    assert line.stream_interval() == 0.0

    def refuse(count: int, seconds: float) -> None:
        for _ in range(count):
            clock.advance(seconds / count)
            with pytest.raises(Overloaded):
                line.admit(1)

    refuse(2000, 4.0)
    assert line.stream_interval() == pytest.approx(500 * INTERVAL_SECONDS_PER_REJECTION, rel=0.01)
    refuse(40_000, 4.0)
    assert line.stream_interval() == MAX_INTERVAL_SECONDS
    clock.advance(10 * DECAY_SECONDS)
    assert line.stream_interval() < 0.001


def refused_line() -> tuple[AdmissionController, FakeClock, list[Permit], Overloaded]:
    """Return a full admission queue of two requests, and the latest rejection."""
    clock = FakeClock()
    line = AdmissionController(AdmissionLimits(max_waiting_requests=2), clock)
    permits = [line.admit(1), line.admit(1)]
    error = line.rejection()
    assert isinstance(error, Overloaded) and error.__traceback__ is None
    return line, clock, permits, error


def test_a_flood_is_refused_with_one_error_for_a_while_and_every_one_of_it_counts() -> None:
    line, clock, _, error = refused_line()
    for _ in range(9):
        clock.advance(REJECTION_CACHE_SECONDS / 10)
        assert line.rejection() is error
    counted = line.stream_interval()
    clock.advance(REJECTION_CACHE_SECONDS / 5)
    other = line.rejection()
    assert isinstance(other, Overloaded) and other is not error and other.message == error.message
    other_line, other_clock, _, _ = refused_line()
    for _ in range(9):
        other_clock.advance(REJECTION_CACHE_SECONDS / 10)
        with pytest.raises(Overloaded):
            other_line.check()
    assert counted == other_line.stream_interval() > 0.0


def test_a_refusal_does_not_outlive_its_reason() -> None:
    line, _, permits, error = refused_line()
    permits[0].mark_running()
    assert line.rejection() is None, "there is room again"
    line.admit(1)
    assert line.rejection() is error, "as full as it was"
    line.renew(AdmissionLimits(max_waiting_requests=3))
    assert line.rejection() is None


def test_a_queue_that_is_full_of_tokens_and_loses_some_rejects_no_request_for_them() -> None:
    line = AdmissionController(AdmissionLimits(max_waiting_tokens=100), FakeClock())
    permit = line.admit(500)
    assert line.rejection() is not None
    permit.end()
    line.admit(0)
    assert line.rejection() is None


def test_an_empty_queue_rejects_no_request() -> None:
    assert AdmissionController(AdmissionLimits(), FakeClock()).rejection() is None


def test_a_permit_is_given_back_once() -> None:
    line, used = AdmissionController(AdmissionLimits(), FakeClock()), []
    other, permit = line.admit(5), line.admit(7, on_end=used.append)
    permit.end(3)
    permit.end(4)
    permit.mark_running()
    assert counters(line) == (1, 5, 1) and used == [3]
    other.mark_running()
    other.mark_running()
    assert counters(line) == (0, 0, 1)


class Line(RuleBasedStateMachine):
    """Requests come, start and end in any order, some twice; the counters are those of the ones that are there."""

    permits = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.line = AdmissionController(
            AdmissionLimits(max_waiting_requests=3, max_waiting_tokens=20, max_queue_wait=5), self.clock
        )
        self.waiting: dict[int, tuple[Permit, int]] = {}
        self.open: dict[int, Permit] = {}
        self.spent: list[int] = []

    @rule(target=permits, tokens=integers(0, 30), timeout=one_of(none(), floats(0, 10)))
    def admit(self, tokens: int, timeout: float | None) -> Permit | None:
        before = counters(self.line)
        try:
            permit = self.line.admit(tokens, timeout=timeout, on_end=self.spent.append)
        except Overloaded as error:
            assert self.waiting and before == counters(self.line)
            assert 1 <= error.details["retry_after"] <= MAX_RETRY_SECONDS  # type: ignore[operator] # noqa: PT017
            return None
        assert len(self.waiting) < 3
        assert not self.waiting or before[1] + tokens <= 20
        self.waiting[id(permit)], self.open[id(permit)] = (permit, tokens), permit
        return permit

    @rule(permit=permits)
    def start(self, permit: Permit | None) -> None:
        if permit is not None:
            permit.mark_running()
            self.waiting.pop(id(permit), None)

    @rule(permit=permits, used=integers(0, 9))
    def end(self, permit: Permit | None, used: int) -> None:
        if permit is not None:
            before = len(self.spent)
            permit.end(used)
            assert self.spent[before:] == ([used] if id(permit) in self.open else [])
            self.waiting.pop(id(permit), None)
            self.open.pop(id(permit), None)

    @rule(seconds=floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(left_behind=integers(0, 3), num_running=integers(0, 3))
    def hear(self, left_behind: int, num_running: int) -> None:
        self.line.engine_counts = left_behind, num_running

    @rule(slots=one_of(integers(1, 4), just(math.inf)))
    def learn(self, slots: float) -> None:
        self.line.max_running = slots

    @invariant()
    def the_counters_hold(self) -> None:
        tokens = sum(tokens for _, tokens in self.waiting.values())
        assert counters(self.line) == (len(self.waiting), tokens, len(self.open))
        assert self.line.expected_wait >= 0

    def teardown(self) -> None:
        for permit in self.open.values():
            permit.end()
        assert counters(self.line) == (0, 0, 0)
        self.line.admit(10**9, timeout=0).end()


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=20, stateful_step_count=30)


def test_an_empty_queue_admits_all_requests() -> None:
    line = AdmissionController(
        AdmissionLimits(max_waiting_requests=1, max_waiting_tokens=10, max_queue_wait=0.0), FakeClock()
    )
    for _ in range(3):
        line.admit(1_000_000, timeout=0.0).mark_running()
    assert counters(line) == (0, 0, 3)


def test_a_full_queue_admits_no_request() -> None:
    line = AdmissionController(AdmissionLimits(max_waiting_requests=2), FakeClock())
    line.admit(1)
    first = line.admit(1)
    with pytest.raises(Overloaded, match="2 requests wait, the limit is 2"):
        line.admit(1)
    assert counters(line) == (2, 2, 2)
    first.mark_running()
    line.admit(1)


def test_prompt_tokens_fill_a_line_too() -> None:
    line = AdmissionController(AdmissionLimits(max_waiting_tokens=10), FakeClock())
    line.admit(6)
    line.admit(4)
    with pytest.raises(Overloaded, match="10 prompt tokens wait and 1 came, the limit is 10"):
        line.admit(1)
    line.admit(0)


def paced(
    gap: float, *, limits: AdmissionLimits | None = None, waiting: int = 1
) -> tuple[AdmissionController, FakeClock]:
    """Return a queue with a waiting request, of an engine with free slots that starts one every `gap` seconds."""
    clock = FakeClock()
    line = AdmissionController(limits or AdmissionLimits(max_queue_wait=60, always_admitted=0), clock)
    line.engine_counts = (1, 1)
    permits = [line.admit(1) for _ in range(MIN_RATE_EVENTS + waiting)]
    for permit in permits[:MIN_RATE_EVENTS]:
        clock.advance(gap)
        permit.mark_running()
    assert line.waiting_requests == waiting
    return line, clock


def test_nothing_is_expected_before_the_pace_is_known() -> None:
    line = AdmissionController(AdmissionLimits(max_queue_wait=0.001, always_admitted=0), FakeClock())
    for _ in range(100):
        line.admit(1, timeout=0.001)
    assert line.expected_wait == 0.0


def test_the_expected_wait_is_the_line_by_its_pace() -> None:
    line, _ = paced(1.0, waiting=3)
    assert line.expected_wait == pytest.approx(3.0)


def test_a_request_that_would_wait_beyond_the_limit_is_rejected_with_a_retry_after() -> None:
    line, _ = paced(2.0, limits=AdmissionLimits(max_queue_wait=25, always_admitted=0), waiting=12)
    line.admit(1)
    with pytest.raises(Overloaded, match=r"the expected wait is 26\.0 s, the limit is 25 s") as caught:
        line.admit(1)
    assert caught.value.details["retry_after"] == pytest.approx(1.0)


def test_few_may_wait_however_long_it_takes() -> None:
    line, _ = paced(3.0, limits=AdmissionLimits(max_queue_wait=1, always_admitted=4), waiting=2)
    line.admit(1)
    with pytest.raises(Overloaded, match=r"wait is 9\.0 s, the limit is 7 s"):
        line.admit(1, timeout=7)
    line.admit(1)
    with pytest.raises(Overloaded, match=r"wait is 12\.0 s, the limit is 1 s"):
        line.admit(1)


def test_whether_one_would_be_let_in_can_be_asked_without_coming() -> None:
    line, _ = paced(2.0, limits=AdmissionLimits(max_queue_wait=5, always_admitted=0), waiting=2)
    line.check()
    assert (line.waiting_requests, line.open_requests) == (2, MIN_RATE_EVENTS + 2)
    line.admit(1)
    with pytest.raises(Overloaded, match=r"wait is 6\.0 s, the limit is 5 s"):
        line.check()
    with pytest.raises(Overloaded, match=r"prompt tokens wait and 1000000 came"):
        line.check(1_000_000)


def test_who_would_wait_longer_than_its_own_timeout_is_refused() -> None:
    line, _ = paced(2.0, waiting=5)
    line.admit(1, timeout=10.5).end()
    with pytest.raises(Overloaded, match=r"wait is 10\.0 s, the limit is 3\.5 s") as caught:
        line.admit(1, timeout=3.5)
    assert caught.value.details["retry_after"] == pytest.approx(6.5)


def test_a_prompt_is_weighed_once_it_is_known() -> None:
    line = AdmissionController(AdmissionLimits(max_waiting_tokens=10), FakeClock())
    first, second = line.admit(0), line.admit(0)
    first.set_prompt_tokens(8)
    assert line.waiting_tokens == 8
    with pytest.raises(Overloaded, match="8 prompt tokens wait and 3 came, the limit is 10"):
        second.set_prompt_tokens(3)
    assert line.waiting_tokens == 8
    second.set_prompt_tokens(2)
    first.mark_running()
    first.set_prompt_tokens(100)  # it does not wait any more
    assert line.waiting_tokens == 2
    second.end()
    first.end()
    assert (line.waiting_tokens, line.waiting_requests, line.open_requests) == (0, 0, 0)


def test_a_prompt_that_is_alone_in_line_may_be_of_any_size() -> None:
    line = AdmissionController(AdmissionLimits(max_waiting_tokens=10), FakeClock())
    line.admit(0).set_prompt_tokens(1000)
    assert line.waiting_tokens == 1000


def test_a_line_holds_to_new_limits_and_keeps_who_is_in_it() -> None:
    line = AdmissionController(AdmissionLimits(max_waiting_requests=1), FakeClock())
    line.admit(5)
    with pytest.raises(Overloaded, match="the limit is 1"):
        line.admit(5)
    line.renew(AdmissionLimits(max_waiting_requests=2, max_waiting_tokens=9))
    with pytest.raises(Overloaded, match="the limit is 9"):
        line.admit(5)
    line.admit(4)
    assert counters(line) == (2, 9, 2)


@pytest.mark.parametrize("name", ["max_waiting_requests", "max_waiting_tokens", "max_queue_wait"])
def test_a_line_cannot_be_shorter_than_nothing(name: str) -> None:
    for value in (-1, math.nan):
        with pytest.raises(ConfigError, match=f"{name} must be at least 0"):
            AdmissionLimits(**{name: value})


# -- how long it would take --------------------------------------------------------------------------------------------

SLOTS = 256


def crowded(limits: AdmissionLimits | None = None) -> tuple[AdmissionController, FakeClock, list[Permit], list[Permit]]:
    """Return the queue of a quickly filled engine that starts no more, its waiting and its running permits."""
    clock = FakeClock()
    line = AdmissionController(limits or AdmissionLimits(max_queue_wait=3, always_admitted=0), clock)
    line.max_running = SLOTS
    waiting, running = [], []
    for _ in range(SLOTS):
        running.append(line.admit(1))
        clock.advance(0.001)
        running[-1].mark_running()
    for _ in range(SLOTS):
        waiting.append(line.admit(1))
    line.engine_counts = SLOTS, SLOTS
    assert line.waiting_requests == line.running_requests == SLOTS and line.expected_wait == 0.0
    return line, clock, waiting, running


def make_room(waiting: list[Permit], running: list[Permit], count: int) -> None:
    """Let so many end, and others take their places."""
    for _ in range(min(count, len(waiting))):
        running.pop(0).end()
        running.append(waiting.pop(0))
        running[-1].mark_running()


def test_how_fast_an_engine_was_filled_is_not_how_fast_others_make_room() -> None:
    line, clock, waiting, running = crowded()
    refused = 0
    for _ in range(40):  # ten make room in each tenth of a second, and a hundred come
        clock.advance(0.1)
        make_room(waiting, running, 10)
        for _ in range(100):
            try:
                waiting.append(line.admit(1))
            except Overloaded:
                refused += 1
    assert refused > 0 and line.waiting_requests <= 256 + 3.2 * 100
    assert line.expected_wait == pytest.approx(line.waiting_requests / 100, rel=0.2)


def test_with_free_slots_no_request_has_to_finish_first() -> None:
    """As where the prompts of a burst are more than a step may have, and answers take a long time."""
    clock = FakeClock()
    line = AdmissionController(AdmissionLimits(max_queue_wait=2, always_admitted=0), clock)
    line.max_running = SLOTS
    waiting: list[Permit] = []
    for number in range(120):  # 60 arrive per second, and 40 start
        clock.advance(1 / 60)
        waiting.append(line.admit(1))
        line.engine_counts = len(waiting), line.running_requests
        if number % 3:
            waiting.pop(0).mark_running()
    assert line.running_requests > 70 and line.waiting_requests > 30
    assert line.expected_wait == pytest.approx(line.waiting_requests / 40, rel=0.3)


def test_a_burst_to_an_engine_that_has_room_is_taken() -> None:
    clock = FakeClock()
    line = AdmissionController(AdmissionLimits(), clock)
    line.max_running = SLOTS
    running = deque[Permit]()
    for _ in range(100):  # ten arrive per second, and run after 0.3 s
        clock.advance(0.1)
        permit = line.admit(1)
        clock.advance(0.3)
        permit.mark_running()
        running.append(permit)
        if len(running) > 7:
            running.popleft().end()
    assert len([line.admit(1) for _ in range(100)]) == 100
    assert line.expected_wait == pytest.approx(0.3)


def test_where_the_api_server_is_slow_recent_waits_are_expected_for_a_while() -> None:
    clock = FakeClock()
    line = AdmissionController(AdmissionLimits(max_queue_wait=2, always_admitted=4), clock)
    for _ in range(20):
        permit = line.admit(1)
        clock.advance(5.0)
        permit.mark_running()
        permit.end()
    for _ in range(4):
        line.admit(1)
    with pytest.raises(Overloaded, match=r"wait is 5\.0 s, the limit is 2 s"):
        line.admit(1)
    clock.advance(RECENT_SECONDS + 0.1)
    line.admit(1)


def test_more_requests_than_slots_wait_before_the_engine_reports_it() -> None:
    clock = FakeClock()
    line = AdmissionController(AdmissionLimits(max_queue_wait=3, always_admitted=0), clock)
    line.max_running = SLOTS
    for _ in range(SLOTS):
        line.admit(1)
        clock.advance(0.0001)
    assert line.expected_wait == 0.0
    beyond = [line.admit(1) for _ in range(30)]
    clock.advance(0.4)
    assert line.expected_wait == pytest.approx(len(beyond) * 0.4 / MIN_RATE_EVENTS)
    clock.advance(10.0)
    with pytest.raises(Overloaded, match="the expected wait is"):
        line.admit(1)


def test_a_queue_that_no_request_leaves_admits_none_after_a_while() -> None:
    line, clock, _, _ = crowded()
    line.admit(1)
    clock.advance(0.05)
    line.admit(1)
    clock.advance(2.0)
    with pytest.raises(Overloaded, match="the expected wait is"):
        line.admit(1)


def test_a_pause_counts_as_soon_as_it_is_there() -> None:
    line, clock, waiting, running = crowded(AdmissionLimits(max_queue_wait=60))
    for _ in range(MIN_RATE_EVENTS):
        clock.advance(0.01)
        make_room(waiting, running, 1)
    before = line.expected_wait
    clock.advance(0.01 * MIN_RATE_EVENTS)
    assert line.expected_wait == pytest.approx(2 * before)


def test_who_leaves_the_line_makes_no_room() -> None:
    line, clock, waiting, _ = crowded()
    clock.advance(1.0)
    before = line.expected_wait
    for permit in waiting[:128]:
        permit.end()
    assert line.expected_wait == pytest.approx(before / 2)


def test_an_engine_that_dies_makes_no_room() -> None:
    line, clock, waiting, running = crowded()
    clock.advance(1.0)
    before = line.expected_wait
    for permit in running:
        permit.end(makes_room=False)
    line.max_running = 0  # as if all of them were taken again at once
    assert line.expected_wait == pytest.approx(before)
    for permit in waiting:
        permit.end(makes_room=False)
    assert line.engine_counts == (0, 0)


def test_who_was_worked_for_makes_room_though_its_client_still_reads() -> None:
    line, clock, _, running = crowded()
    clock.advance(1.0)
    before = line.expected_wait
    for permit in running[: 2 * MIN_RATE_EVENTS]:
        permit.mark_finished()
        permit.mark_finished()
    assert (line.running_requests, line.open_requests) == (SLOTS - 2 * MIN_RATE_EVENTS, 2 * SLOTS)
    assert line.expected_wait == pytest.approx(before / 2)
    for permit in running:
        permit.end()
    assert line.running_requests == 0


def test_those_who_end_together_make_no_fast_line() -> None:
    """A batch that starts at once ends at once: its slots are taken in a moment, then no request starts."""
    line, clock, waiting, running = crowded(AdmissionLimits(max_waiting_requests=10**6, max_queue_wait=10**6))
    result = []
    for number in range(20):
        waiting += [line.admit(1) for _ in range(256)]
        for _ in range(30):
            clock.advance(0.05)
            if number > 1:
                result.append(line.waiting_requests / line.expected_wait)
        make_room(waiting, running, 256)
        result.append(line.waiting_requests / line.expected_wait)
    assert all(0.5 * 256 / 1.5 <= each <= 2 * 256 / 1.5 for each in result)
    assert result[-1] == pytest.approx(256 / 1.5, rel=0.1)


@pytest.mark.parametrize(("pause", "is_known"), [(FORGET_SECONDS - 1, True), (FORGET_SECONDS + 1, False)])
def test_the_next_line_knows_the_pace_of_the_last_one_for_some_minutes(pause: float, is_known: bool) -> None:
    line, clock, waiting, running = crowded(AdmissionLimits(max_queue_wait=10**6))
    for _ in range(20):
        clock.advance(0.1)
        make_room(waiting, running, 1)
    line.engine_counts = (0, 0)
    line.max_running = 10**6
    assert line.expected_wait < 3.0
    clock.advance(pause)
    line.max_running = SLOTS
    line.engine_counts = SLOTS, SLOTS
    assert line.expected_wait == (pytest.approx(line.waiting_requests * 0.1, rel=0.1) if is_known else 0.0)


def test_what_an_engine_has_said_is_forgotten_when_nothing_is_open() -> None:
    line, clock, waiting, running = crowded()
    for permit in [*waiting, *running]:
        permit.end()
    clock.advance(3600)
    assert line.engine_counts == (0, 0)
    assert len([line.admit(1) for _ in range(200)]) == 200 and line.expected_wait == 0.0


def test_an_empty_queue_admits_all_requests_whatever_the_engine_reported() -> None:
    clock = FakeClock()
    line = AdmissionController(AdmissionLimits(max_queue_wait=0, always_admitted=0), clock)
    for _ in range(3):
        line.engine_counts = (5, 256)
        clock.advance(1000)
        line.admit(1, timeout=0.001).mark_running()
    assert counters(line) == (0, 0, 3)


def test_a_pace_is_measured_over_a_bounded_time_and_memory() -> None:
    pace, now = RateEstimator(), 0.0
    pace.run(now, matters=True)
    for gap in (0.5, 0.05, 0.001):
        for _ in range(2 * MAX_RATE_EVENTS):
            now += gap
            pace.record(now)
        assert pace.rate(now) == pytest.approx(1 / gap, rel=0.1)
    assert pace.rate(now + RATE_SECONDS) < MAX_RATE_EVENTS / RATE_SECONDS


def test_what_happens_while_it_does_not_matter_says_nothing() -> None:
    pace = RateEstimator()
    for number in range(100):
        pace.record(float(number))
    pace.run(100.0, matters=True)
    assert pace.rate(100.0) == math.inf and pace.rate(101.0) == MIN_RATE_EVENTS
