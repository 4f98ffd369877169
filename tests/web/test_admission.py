"""admission.py: permits, counters, limits of requests and tokens, and cached rejections."""

import math

import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import floats, integers, just, none, one_of

from chairlift.core.clock import FakeClock
from chairlift.core.errors import ConfigError, Overloaded
from chairlift.web.admission import (
    MAX_RETRY_SECONDS,
    REJECTION_CACHE_SECONDS,
    AdmissionController,
    AdmissionLimits,
    Permit,
)
from support_admission import admission_with_rate, counters


def test_a_permit_counts_until_it_starts_and_until_it_ends() -> None:
    admission, used_tokens = AdmissionController(AdmissionLimits(), FakeClock()), []
    permit = admission.admit(7, on_end=used_tokens.append)
    assert counters(admission) == (1, 7, 1)
    permit.mark_running()
    assert counters(admission) == (0, 0, 1) and used_tokens == []
    permit.end(12)
    assert counters(admission) == (0, 0, 0) and used_tokens == [12]


def test_a_request_admitted_early_may_be_rejected_for_its_expected_wait() -> None:
    admission, _ = admission_with_rate(1.0, waiting=4)
    used_tokens: list[int] = []
    permit = admission.admit(0)
    with pytest.raises(Overloaded, match=r"wait is 4.0 s, the limit is 3.5 s"):
        permit.attach(3.5, used_tokens.append)
    permit.attach(4.5, used_tokens.append)
    permit.attach(None, used_tokens.append)
    before = counters(admission)
    permit.end(9)
    assert used_tokens == [9] and counters(admission) == (before[0] - 1, before[1], before[2] - 1)


def test_of_a_crowd_that_was_let_in_at_once_the_first_may_stay() -> None:
    admission, _ = admission_with_rate(0.1, waiting=1)
    permits = [admission.admit(0) for _ in range(24)]
    admitted = []
    for number, permit in enumerate(permits):
        try:
            permit.attach(0.85, lambda used_tokens: None)
            admitted.append(number)
        except Overloaded:
            permit.end()
    assert admitted == list(range(8)), "requests behind them do not count"


def test_an_empty_queue_admits_a_request_of_any_timeout() -> None:
    admission = AdmissionController(AdmissionLimits(), FakeClock())
    admission.admit(0).attach(1e-9, lambda used_tokens: None)


def full_admission() -> tuple[AdmissionController, FakeClock, list[Permit], Overloaded]:
    """Return a full admission queue of two requests, and the latest rejection."""
    clock = FakeClock()
    admission = AdmissionController(AdmissionLimits(max_waiting_requests=2), clock)
    permits = [admission.admit(1), admission.admit(1)]
    error = admission.rejection()
    assert isinstance(error, Overloaded) and error.__traceback__ is None
    return admission, clock, permits, error


def test_a_flood_is_refused_with_one_error_for_a_while_and_every_one_of_it_counts() -> None:
    admission, clock, _, error = full_admission()
    for _ in range(9):
        clock.advance(REJECTION_CACHE_SECONDS / 10)
        assert admission.rejection() is error
    interval = admission.stream_interval()
    clock.advance(REJECTION_CACHE_SECONDS / 5)
    other = admission.rejection()
    assert isinstance(other, Overloaded) and other is not error and other.message == error.message
    other_admission, other_clock, _, _ = full_admission()
    for _ in range(9):
        other_clock.advance(REJECTION_CACHE_SECONDS / 10)
        with pytest.raises(Overloaded):
            other_admission.check()
    assert interval == other_admission.stream_interval() > 0.0


def test_a_refusal_does_not_outlive_its_reason() -> None:
    admission, _, permits, error = full_admission()
    permits[0].mark_running()
    assert admission.rejection() is None, "the queue has room again"
    admission.admit(1)
    assert admission.rejection() is error, "the queue is as full as before"
    admission.renew(AdmissionLimits(max_waiting_requests=3))
    assert admission.rejection() is None


def test_a_queue_that_is_full_of_tokens_and_loses_some_rejects_no_request_for_them() -> None:
    admission = AdmissionController(AdmissionLimits(max_waiting_tokens=100), FakeClock())
    permit = admission.admit(500)
    assert admission.rejection() is not None
    permit.end()
    admission.admit(0)
    assert admission.rejection() is None


def test_an_empty_queue_rejects_no_request() -> None:
    assert AdmissionController(AdmissionLimits(), FakeClock()).rejection() is None


def test_a_permit_is_given_back_once() -> None:
    admission, used_tokens = AdmissionController(AdmissionLimits(), FakeClock()), []
    other, permit = admission.admit(5), admission.admit(7, on_end=used_tokens.append)
    permit.end(3)
    permit.end(4)
    permit.mark_running()
    assert counters(admission) == (1, 5, 1) and used_tokens == [3]
    other.mark_running()
    other.mark_running()
    assert counters(admission) == (0, 0, 1)


class AdmissionMachine(RuleBasedStateMachine):
    """Requests arrive, start and end in any order, some twice; the counters stay exact."""

    permits = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.admission = AdmissionController(
            AdmissionLimits(max_waiting_requests=3, max_waiting_tokens=20, max_queue_wait=5), self.clock
        )
        self.waiting: dict[int, tuple[Permit, int]] = {}
        self.open: dict[int, Permit] = {}
        self.used_tokens: list[int] = []

    @rule(target=permits, tokens=integers(0, 30), timeout=one_of(none(), floats(0, 10)))
    def admit(self, tokens: int, timeout: float | None) -> Permit | None:
        before = counters(self.admission)
        try:
            permit = self.admission.admit(tokens, timeout=timeout, on_end=self.used_tokens.append)
        except Overloaded as error:
            assert self.waiting and before == counters(self.admission)
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

    @rule(permit=permits, used_tokens=integers(0, 9))
    def end(self, permit: Permit | None, used_tokens: int) -> None:
        if permit is not None:
            before = len(self.used_tokens)
            permit.end(used_tokens)
            assert self.used_tokens[before:] == ([used_tokens] if id(permit) in self.open else [])
            self.waiting.pop(id(permit), None)
            self.open.pop(id(permit), None)

    @rule(seconds=floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(num_waiting=integers(0, 3), num_running=integers(0, 3))
    def set_engine_counts(self, num_waiting: int, num_running: int) -> None:
        self.admission.engine_counts = num_waiting, num_running

    @rule(slots=one_of(integers(1, 4), just(math.inf)))
    def set_max_running(self, slots: float) -> None:
        self.admission.max_running = slots

    @invariant()
    def the_counters_hold(self) -> None:
        tokens = sum(tokens for _, tokens in self.waiting.values())
        assert counters(self.admission) == (len(self.waiting), tokens, len(self.open))
        assert self.admission.expected_wait >= 0

    def teardown(self) -> None:
        for permit in self.open.values():
            permit.end()
        assert counters(self.admission) == (0, 0, 0)
        self.admission.admit(10**9, timeout=0).end()


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=20, stateful_step_count=30)


def test_an_empty_queue_admits_all_requests() -> None:
    admission = AdmissionController(
        AdmissionLimits(max_waiting_requests=1, max_waiting_tokens=10, max_queue_wait=0.0), FakeClock()
    )
    for _ in range(3):
        admission.admit(1_000_000, timeout=0.0).mark_running()
    assert counters(admission) == (0, 0, 3)


def test_a_full_queue_admits_no_request() -> None:
    admission = AdmissionController(AdmissionLimits(max_waiting_requests=2), FakeClock())
    admission.admit(1)
    first = admission.admit(1)
    with pytest.raises(Overloaded, match="2 requests wait, the limit is 2"):
        admission.admit(1)
    assert counters(admission) == (2, 2, 2)
    first.mark_running()
    admission.admit(1)


def test_prompt_tokens_fill_a_line_too() -> None:
    admission = AdmissionController(AdmissionLimits(max_waiting_tokens=10), FakeClock())
    admission.admit(6)
    admission.admit(4)
    with pytest.raises(Overloaded, match="10 prompt tokens wait and this request has 1, the limit is 10"):
        admission.admit(1)
    admission.admit(0)


def test_a_prompt_is_weighed_once_it_is_known() -> None:
    admission = AdmissionController(AdmissionLimits(max_waiting_tokens=10), FakeClock())
    first, second = admission.admit(0), admission.admit(0)
    first.set_prompt_tokens(8)
    assert admission.waiting_tokens == 8
    with pytest.raises(Overloaded, match="8 prompt tokens wait and this request has 3, the limit is 10"):
        second.set_prompt_tokens(3)
    assert admission.waiting_tokens == 8
    second.set_prompt_tokens(2)
    first.mark_running()
    first.set_prompt_tokens(100)  # the request no longer waits
    assert admission.waiting_tokens == 2
    second.end()
    first.end()
    assert (admission.waiting_tokens, admission.waiting_requests, admission.open_requests) == (0, 0, 0)


def test_a_prompt_that_is_alone_in_line_may_be_of_any_size() -> None:
    admission = AdmissionController(AdmissionLimits(max_waiting_tokens=10), FakeClock())
    admission.admit(0).set_prompt_tokens(1000)
    assert admission.waiting_tokens == 1000


def test_a_line_holds_to_new_limits_and_keeps_who_is_in_it() -> None:
    admission = AdmissionController(AdmissionLimits(max_waiting_requests=1), FakeClock())
    admission.admit(5)
    with pytest.raises(Overloaded, match="the limit is 1"):
        admission.admit(5)
    admission.renew(AdmissionLimits(max_waiting_requests=2, max_waiting_tokens=9))
    with pytest.raises(Overloaded, match="the limit is 9"):
        admission.admit(5)
    admission.admit(4)
    assert counters(admission) == (2, 9, 2)


def test_bodies_that_wait_fill_a_queue_too() -> None:
    admission = AdmissionController(AdmissionLimits(max_waiting_bytes=100), FakeClock())
    first, second = admission.admit(0, body_bytes=60), admission.admit(0)
    with pytest.raises(Overloaded, match="bodies of 60 bytes wait and this one has 41, the limit is 100") as caught:
        admission.admit(0, body_bytes=41)
    assert caught.value.message.count("server overloaded") == 1
    with pytest.raises(Overloaded, match="bodies of 60 bytes wait and this one has 50, the limit is 100"):
        second.set_body_bytes(50)
    second.set_body_bytes(40)
    assert admission.waiting_bytes == 100
    first.mark_running()
    assert admission.waiting_bytes == 40, "the engine has the prompt of a running request"
    admission.admit(0, body_bytes=60).end()
    second.end()
    assert admission.waiting_bytes == 0
    admission.admit(0, body_bytes=1000).end()


def test_by_default_no_expected_wait_is_too_long() -> None:
    admission, clock = admission_with_rate(60.0, limits=AdmissionLimits(), waiting=1)
    for _ in range(500):
        admission.admit(1)
    assert admission.expected_wait > 1_000
    assert admission.rejection() is None
    with pytest.raises(Overloaded, match="the limit is 100 s"):
        admission.admit(1, timeout=100.0)
    clock.advance(1.0)
    admission.renew(AdmissionLimits(max_queue_wait=2.0))
    with pytest.raises(Overloaded, match="the limit is 2 s"):
        admission.admit(1)


@pytest.mark.parametrize("name", ["max_waiting_requests", "max_waiting_tokens", "max_waiting_bytes", "max_queue_wait"])
def test_a_line_cannot_be_shorter_than_nothing(name: str) -> None:
    for value in (-1, math.nan):
        with pytest.raises(ConfigError, match=f"{name} must be at least 0"):
            AdmissionLimits(**{name: value})


def test_a_permit_knows_how_many_requests_are_ahead_of_it() -> None:
    admission = AdmissionController(AdmissionLimits())
    permits = [admission.admit(1) for _ in range(4)]
    assert [permit.num_ahead for permit in permits] == [0, 1, 2, 3]
    permits[1].end()  # its client is gone
    assert [permit.num_ahead for permit in permits] == [0, 0, 1, 2]
    permits[0].mark_running()
    assert [permit.num_ahead for permit in permits] == [0, 0, 0, 1]
    permits.append(admission.admit(1))
    permits[3].mark_running()  # the engine may take another order
    assert [permit.num_ahead for permit in permits] == [0, 0, 0, 0, 1]
    for permit in permits:
        permit.end()
    assert admission.waiting_requests == 0 and not admission._waiting


def test_a_permit_waits_until_it_runs_or_ends() -> None:
    controller = AdmissionController(AdmissionLimits())
    first, second = controller.admit(1), controller.admit(1)
    assert first.is_waiting and second.is_waiting
    first.mark_running()
    second.end()
    assert not first.is_waiting and not second.is_waiting
