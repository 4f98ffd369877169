"""Limits: the line is counted exactly, its pace is measured while there is one, buckets never give too much."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import data, floats, integers, lists, none, one_of, sampled_from, tuples

from chairlift.core.clock import FakeClock
from chairlift.core.errors import ConfigError, Overloaded, RateLimited
from chairlift.web.limits import (
    LEAST_STARTS,
    MAX_TENANTS,
    MINUTE,
    PACE_STARTS,
    Admission,
    AdmissionLimits,
    Bucket,
    Pace,
    Permit,
    TenantLimits,
    Tenants,
)

# -- the line ------------------------------------------------------------------------------------------------------


def counters(line: Admission) -> tuple[int, int, int]:
    return line.waiting_requests, line.waiting_tokens, line.open_requests


def test_a_permit_counts_until_it_starts_and_until_it_ends() -> None:
    line, used = Admission(AdmissionLimits(), FakeClock()), []
    permit = line.admit(7, spent=used.append)
    assert counters(line) == (1, 7, 1)
    permit.started()
    assert counters(line) == (0, 0, 1) and used == []
    permit.end(12)
    assert counters(line) == (0, 0, 0) and used == [12]


def test_a_permit_is_given_back_once() -> None:
    line, used = Admission(AdmissionLimits(), FakeClock()), []
    other, permit = line.admit(5), line.admit(7, spent=used.append)
    permit.end(3)
    permit.end(4)
    permit.started()
    assert counters(line) == (1, 5, 1) and used == [3]
    other.started()
    other.started()
    assert counters(line) == (0, 0, 1)


class Line(RuleBasedStateMachine):
    """Requests come, start and end in any order, some twice; the counters are those of the ones that are there."""

    permits = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.line = Admission(AdmissionLimits(waiting_requests=3, waiting_tokens=20, wait_seconds=5), self.clock)
        self.waiting: dict[int, tuple[Permit, int]] = {}
        self.open: dict[int, Permit] = {}
        self.spent: list[int] = []

    @rule(target=permits, tokens=integers(0, 30), timeout=one_of(none(), floats(0, 10)))
    def admit(self, tokens: int, timeout: float | None) -> Permit | None:
        before = counters(self.line)
        try:
            permit = self.line.admit(tokens, timeout=timeout, spent=self.spent.append)
        except Overloaded as error:
            assert self.waiting and before == counters(self.line)
            assert 1 <= error.details["retry_after"] <= MINUTE  # type: ignore[operator] # noqa: PT017
            return None
        assert len(self.waiting) < 3
        assert not self.waiting or before[1] + tokens <= 20
        self.waiting[id(permit)], self.open[id(permit)] = (permit, tokens), permit
        return permit

    @rule(permit=permits)
    def start(self, permit: Permit | None) -> None:
        if permit is not None:
            permit.started()
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


def test_an_empty_line_takes_everybody() -> None:
    line = Admission(AdmissionLimits(waiting_requests=1, waiting_tokens=10, wait_seconds=0.0), FakeClock())
    for _ in range(3):
        line.admit(1_000_000, timeout=0.0).started()
    assert counters(line) == (0, 0, 3)


def test_a_full_line_takes_nobody() -> None:
    line = Admission(AdmissionLimits(waiting_requests=2), FakeClock())
    line.admit(1)
    first = line.admit(1)
    with pytest.raises(Overloaded, match="2 requests wait, the limit is 2"):
        line.admit(1)
    assert counters(line) == (2, 2, 2)
    first.started()
    line.admit(1)


def test_prompt_tokens_fill_a_line_too() -> None:
    line = Admission(AdmissionLimits(waiting_tokens=10), FakeClock())
    line.admit(6)
    line.admit(4)
    with pytest.raises(Overloaded, match="10 prompt tokens wait and 1 came, the limit is 10"):
        line.admit(1)
    line.admit(0)


def paced(gap: float, *, limits: AdmissionLimits | None = None, waiting: int = 1) -> tuple[Admission, FakeClock]:
    """Return a line that moved every `gap` seconds for a while, in which somebody waits."""
    clock = FakeClock()
    line = Admission(limits or AdmissionLimits(wait_seconds=60, short_line=0), clock)
    permits = [line.admit(1) for _ in range(2 * LEAST_STARTS + waiting)]
    for permit in permits[: 2 * LEAST_STARTS]:
        clock.advance(gap)
        permit.started()
    assert line.waiting_requests == waiting
    return line, clock


def test_nothing_is_expected_before_the_pace_is_known() -> None:
    line = Admission(AdmissionLimits(wait_seconds=0.001, short_line=0), FakeClock())
    for _ in range(100):
        line.admit(1, timeout=0.001)
    assert line.expected_wait == 0.0


def test_the_expected_wait_is_the_line_by_its_pace() -> None:
    line, _ = paced(2.0, waiting=3)
    assert line.expected_wait == pytest.approx(6.0)


def test_who_would_wait_longer_than_the_limit_is_refused_and_told_when_to_come() -> None:
    line, _ = paced(2.0, limits=AdmissionLimits(wait_seconds=25, short_line=0), waiting=12)
    line.admit(1)
    with pytest.raises(Overloaded, match=r"the wait is about 26\.0 s, it may be 25 s") as caught:
        line.admit(1)
    assert caught.value.details["retry_after"] == pytest.approx(1.0)


def test_few_may_wait_however_long_it_takes() -> None:
    line, _ = paced(100.0, limits=AdmissionLimits(wait_seconds=1, short_line=4), waiting=2)
    line.admit(1)
    with pytest.raises(Overloaded, match=r"about 300\.0 s, it may be 7 s"):
        line.admit(1, timeout=7)
    line.admit(1)
    with pytest.raises(Overloaded, match=r"about 400\.0 s, it may be 1 s"):
        line.admit(1)


def test_whether_one_would_be_let_in_can_be_asked_without_coming() -> None:
    line, _ = paced(2.0, limits=AdmissionLimits(wait_seconds=5, short_line=0), waiting=2)
    line.check()
    assert (line.waiting_requests, line.open_requests) == (2, 2 * LEAST_STARTS + 2)
    line.admit(1)
    with pytest.raises(Overloaded, match=r"about 6\.0 s, it may be 5 s"):
        line.check()
    with pytest.raises(Overloaded, match=r"prompt tokens wait and 1000000 came"):
        line.check(1_000_000)


def test_who_would_wait_longer_than_its_own_timeout_is_refused() -> None:
    line, _ = paced(2.0, waiting=5)
    line.admit(1, timeout=10.5).end()
    with pytest.raises(Overloaded, match=r"about 10\.0 s, it may be 3\.5 s") as caught:
        line.admit(1, timeout=3.5)
    assert caught.value.details["retry_after"] == pytest.approx(6.5)


def test_a_line_that_moves_at_once_keeps_nobody_away() -> None:
    line, _ = paced(0.0, limits=AdmissionLimits(wait_seconds=0.001, short_line=0), waiting=50)
    assert line.expected_wait == 0.0
    line.admit(1)


def test_a_quiet_hour_is_no_pace() -> None:
    """Between the last of a line and the first of the next nobody waited."""
    line, clock = paced(0.1, waiting=0)
    for _ in range(3):
        clock.advance(3600)
        for permit in [line.admit(1) for _ in range(2)]:
            clock.advance(0.1)
            permit.started()
    line.admit(1)
    assert line.expected_wait == pytest.approx(0.1)


def test_a_line_that_everybody_left_has_no_pace_either() -> None:
    clock = FakeClock()
    line = Admission(AdmissionLimits(), clock)
    waiting = [line.admit(1) for _ in range(LEAST_STARTS + 3)]
    for permit in waiting[:-1]:
        clock.advance(0.1)
        permit.started()
    waiting[-1].end()
    clock.advance(3600)
    first, _ = line.admit(1), line.admit(1)
    clock.advance(0.1)
    first.started()
    assert line.expected_wait < 1.0


def test_a_slow_spell_does_not_close_the_line_for_ever() -> None:
    """While one alone may wait the pace cannot be measured; so what was measured long ago has to fade."""
    line, clock = paced(1000.0, waiting=0)
    refused = 0
    for _ in range(2 * PACE_STARTS):
        first = line.admit(1)
        try:
            second = line.admit(1)
        except Overloaded:
            refused += 1
        else:
            second.end()
        clock.advance(0.1)
        first.started()
        first.end()
    assert 0 < refused <= PACE_STARTS
    assert line.expected_wait == 0.0


def test_the_pace_is_that_of_the_last_starts() -> None:
    pace, now = Pace(), 0.0
    for gap in (5.0, 0.5):
        for _ in range(PACE_STARTS + 1):
            now += gap
            pace.started(now, is_line=True)
        assert pace.rate == pytest.approx(1 / gap, rel=0.1)


def test_a_pace_needs_some_starts() -> None:
    pace = Pace()
    for number in range(LEAST_STARTS):
        assert pace.rate is None
        pace.started(float(number), is_line=True)
    pace.started(float(LEAST_STARTS), is_line=True)
    assert pace.rate == pytest.approx(1.0)


# -- buckets -------------------------------------------------------------------------------------------------------

STEPS = lists(tuples(floats(0, 200), floats(0, 50)), max_size=20)


@settings(max_examples=40)
@given(floats(0.01, 1e4), STEPS)
def test_a_bucket_never_gives_more_than_a_minute_and_its_rate(
    per_minute: float, steps: list[tuple[float, float]]
) -> None:
    """Over every stretch of time, not just from the beginning."""
    bucket, now, size = Bucket(per_minute, 0.0), 0.0, max(1.0, per_minute)
    taken: list[tuple[float, float]] = []
    for seconds, amount in steps:
        now += seconds
        if amount <= size and bucket.missing(amount, now) == 0:
            bucket.take(amount, now)
            taken.append((now, amount))
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            given_away = sum(amount for _, amount in taken[first : last + 1])
            span = taken[last][0] - taken[first][0]
            assert given_away <= (size + span * per_minute / MINUTE) * (1 + 1e-9)


@settings(max_examples=40)
@given(floats(0.01, 1e4), STEPS, floats(0, 1e5))
def test_after_the_seconds_that_are_missing_there_is_enough(
    per_minute: float, steps: list[tuple[float, float]], amount: float
) -> None:
    bucket, now = Bucket(per_minute, 0.0), 0.0
    for seconds, taken in steps:
        now += seconds
        bucket.take(taken, now)
    seconds = bucket.missing(amount, now)
    assert 0 <= seconds < math.inf
    if seconds > 1e-3:
        assert bucket.missing(amount, now + seconds * 0.99) > 0
    assert bucket.missing(amount, now + seconds + 1e-3) == 0


@settings(max_examples=40)
@given(floats(1, 1e4), lists(floats(-1e4, 0), max_size=9))
def test_what_is_given_back_fills_a_bucket_up_and_no_more(per_minute: float, amounts: list[float]) -> None:
    bucket = Bucket(per_minute, 0.0)
    for amount in amounts:
        bucket.take(amount, 0.0)
    assert bucket.missing(per_minute, 0.0) == 0
    bucket.take(per_minute, 0.0)
    assert bucket.missing(1, 0.0) == pytest.approx(MINUTE / per_minute)


def test_a_bucket_is_full_after_a_minute_and_no_fuller_after_an_hour() -> None:
    bucket = Bucket(60, 0.0)
    for now in (3600.0, 7200.0):
        bucket.take(60, now)
        assert bucket.missing(1, now) == pytest.approx(1)


def test_a_bucket_can_be_overdrawn_and_pays_it_back() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(90, 0.0)
    assert bucket.missing(0, 0.0) == pytest.approx(30)
    assert bucket.missing(1, 30.0) == pytest.approx(1)
    assert bucket.missing(1, 31.0) == 0


# -- tenants -------------------------------------------------------------------------------------------------------


def refused(tenants: Tenants, tenant: str = "a", tokens: int = 1) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        tenants.begin(tenant, tokens)
    return caught.value


def test_without_limits_nobody_is_refused() -> None:
    tenants = Tenants(TenantLimits(), FakeClock())
    for _ in range(1000):
        tenants.begin("a", 10**9)


def test_requests_of_a_minute() -> None:
    clock = FakeClock()
    tenants = Tenants(TenantLimits(requests_per_minute=3), clock)
    for _ in range(3):
        tenants.begin("a", 1).end(1)
    error = refused(tenants)
    assert "your requests of this minute are used up, the limit is 3" in str(error)
    assert error.details["retry_after"] == pytest.approx(20)
    clock.advance(19.9)
    refused(tenants)
    clock.advance(0.2)
    tenants.begin("a", 1)
    refused(tenants)


def test_tokens_of_a_minute() -> None:
    clock = FakeClock()
    tenants = Tenants(TenantLimits(tokens_per_minute=600), clock)
    tenants.begin("a", 500)
    error = refused(tenants, tokens=200)
    assert "your tokens of this minute are used up, the limit is 600" in str(error)
    assert error.details["retry_after"] == pytest.approx(10)
    clock.advance(10.01)
    tenants.begin("a", 200)


def test_tokens_that_were_not_used_are_given_back() -> None:
    tenants = Tenants(TenantLimits(tokens_per_minute=600), FakeClock())
    over = tenants.begin("a", 600)
    refused(tenants)
    over.end(100)
    tenants.begin("a", 500)
    refused(tenants)


def test_a_request_larger_than_a_minute_is_served_by_a_full_bucket_and_then_paid() -> None:
    clock = FakeClock()
    tenants = Tenants(TenantLimits(tokens_per_minute=60), clock)
    tenants.begin("a", 180).end(180)
    assert refused(tenants, tokens=1000).details["retry_after"] == pytest.approx(180)
    clock.advance(120)
    refused(tenants, tokens=1)
    clock.advance(1.01)
    tenants.begin("a", 1)


def test_open_requests() -> None:
    tenants = Tenants(TenantLimits(open_requests=2), FakeClock())
    over = tenants.begin("a", 1)
    tenants.begin("a", 1)
    assert "2 of your requests are open, the limit is 2" in str(refused(tenants))
    over.end(0)
    tenants.begin("a", 1)
    refused(tenants)


def test_who_is_refused_uses_nothing() -> None:
    """A refusal by one limit takes nothing from another."""
    tenants = Tenants(TenantLimits(requests_per_minute=2, tokens_per_minute=100, open_requests=2), FakeClock())
    tenants.begin("a", 100).end(0)
    over = tenants.begin("a", 100)
    for _ in range(10):
        refused(tenants, tokens=50)
    over.end(0)
    clock = FakeClock()
    tenants = Tenants(TenantLimits(requests_per_minute=10, tokens_per_minute=100), clock)
    tenants.begin("a", 100)
    for _ in range(100):
        refused(tenants, tokens=100)
    clock.advance(MINUTE)
    for _ in range(10):
        tenants.begin("a", 10).end(0)


def test_tenants_do_not_share() -> None:
    tenants = Tenants(TenantLimits(requests_per_minute=1, tokens_per_minute=10, open_requests=1), FakeClock())
    tenants.begin("a", 10)
    refused(tenants, "a")
    tenants.begin("b", 10)
    refused(tenants, "b")


@settings(max_examples=40)
@given(lists(tuples(sampled_from("ab"), integers(0, 80), integers(0, 80), floats(0, 30)), max_size=25), data())
def test_a_tenant_gets_what_its_limits_allow_and_its_open_requests_return_to_zero(
    steps: list[tuple[str, int, int, float]], drawn: Any
) -> None:
    clock = FakeClock()
    tenants = Tenants(TenantLimits(requests_per_minute=6, tokens_per_minute=100, open_requests=3), clock)
    running: list[tuple[str, int, Callable[[int], None]]] = []
    begun = {"a": 0, "b": 0}
    spent = {"a": 0, "b": 0}
    for tenant, tokens, used, seconds in steps:
        clock.advance(seconds)
        try:
            running.append((tenant, min(used, tokens), tenants.begin(tenant, tokens)))
            begun[tenant] += 1
        except RateLimited:
            pass
        assert sum(name == tenant for name, _, _ in running) <= 3
        if running and drawn.draw(integers(0, 1)):
            name, real, over = running.pop(drawn.draw(integers(0, len(running) - 1)))
            over.end(real)
            spent[name] += real
    for name, real, over in running:
        over.end(real)
        spent[name] += real
    for name in "ab":
        assert begun[name] <= 6 + clock.now() * 6 / MINUTE + 1e-6
        assert spent[name] <= 100 + clock.now() * 100 / MINUTE + 1e-6
    clock.advance(2 * MINUTE)
    for _ in range(3):
        tenants.begin("a", 1)


def test_the_memory_of_tenants_is_bounded_and_keeps_the_open_ones() -> None:
    tenants = Tenants(TenantLimits(open_requests=1), FakeClock())
    tenants.begin("kept", 1)
    for number in range(2 * MAX_TENANTS):
        tenants.begin(f"t{number}", 1).end(1)
        assert len(tenants._uses) <= MAX_TENANTS
    refused(tenants, "kept")


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute", "open_requests"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_a_limit_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be") as caught:
        TenantLimits(**{name: value})
    assert caught.value.details == {"option": name}


def test_a_prompt_is_weighed_once_it_is_known() -> None:
    line = Admission(AdmissionLimits(waiting_tokens=10), FakeClock())
    first, second = line.admit(0), line.admit(0)
    first.weigh(8)
    assert line.waiting_tokens == 8
    with pytest.raises(Overloaded, match="8 prompt tokens wait and 3 came, the limit is 10"):
        second.weigh(3)
    assert line.waiting_tokens == 8
    second.weigh(2)
    first.started()
    first.weigh(100)  # it does not wait any more
    assert line.waiting_tokens == 2
    second.end()
    first.end()
    assert (line.waiting_tokens, line.waiting_requests, line.open_requests) == (0, 0, 0)


def test_a_prompt_that_is_alone_in_line_may_be_of_any_size() -> None:
    line = Admission(AdmissionLimits(waiting_tokens=10), FakeClock())
    line.admit(0).weigh(1000)
    assert line.waiting_tokens == 1000


def test_a_share_takes_what_it_reserves_and_gives_back_what_it_did_not_use() -> None:
    tenants = Tenants(TenantLimits(tokens_per_minute=100), FakeClock())
    share = tenants.begin("a")
    share.reserve(90)
    with pytest.raises(RateLimited, match="tokens"):
        tenants.begin("a", 20)
    share.end(70)
    tenants.begin("a", 30).end(30)
    with pytest.raises(RateLimited):
        tenants.begin("a").reserve(1)


def test_who_is_refused_for_what_others_do_keeps_its_request_of_the_minute() -> None:
    tenants = Tenants(TenantLimits(requests_per_minute=2), FakeClock())
    for _ in range(5):
        share = tenants.begin("a")
        share.spare()
        share.end(0)
    for _ in range(2):
        tenants.begin("a").end(0)
    with pytest.raises(RateLimited):
        tenants.begin("a")


def test_without_a_limit_of_requests_there_is_none_to_keep() -> None:
    share = Tenants(TenantLimits(open_requests=1), FakeClock()).begin("a")
    share.spare()
    share.end(0)


# -- other limits from now on ------------------------------------------------------------------------------------------


def test_a_line_holds_to_new_limits_and_keeps_who_is_in_it() -> None:
    line = Admission(AdmissionLimits(waiting_requests=1), FakeClock())
    line.admit(5)
    with pytest.raises(Overloaded, match="the limit is 1"):
        line.admit(5)
    line.renew(AdmissionLimits(waiting_requests=2, waiting_tokens=9))
    with pytest.raises(Overloaded, match="the limit is 9"):
        line.admit(5)
    line.admit(4)
    assert counters(line) == (2, 9, 2)


def test_what_was_used_of_the_minute_stays_used_under_new_limits() -> None:
    clock = FakeClock()
    tenants = Tenants(TenantLimits(requests_per_minute=3, tokens_per_minute=100), clock)
    for _ in range(3):
        tenants.begin("a", 10).end(10)
    refused(tenants)
    tenants.renew(TenantLimits(requests_per_minute=5, tokens_per_minute=40))
    tenants.begin("a", 10).end(10)
    assert "your tokens" in str(refused(tenants))
    tenants.renew(TenantLimits(requests_per_minute=5, tokens_per_minute=1000))
    tenants.begin("a", 10).end(10)
    assert "your requests" in str(refused(tenants))
    clock.advance(12.1)
    tenants.begin("a", 10).end(10)
    refused(tenants)


def test_limits_come_and_go_while_requests_are_open() -> None:
    tenants = Tenants(TenantLimits(), FakeClock())
    share = tenants.begin("a", 50)
    tenants.renew(TenantLimits(tokens_per_minute=100, open_requests=1))
    assert "are open" in str(refused(tenants))
    share.end(70)
    assert "your tokens" in str(refused(tenants, tokens=40))
    tenants.renew(TenantLimits())
    for _ in range(5):
        tenants.begin("a", 1000)


@pytest.mark.parametrize("name", ["waiting_requests", "waiting_tokens", "wait_seconds"])
def test_a_line_cannot_be_shorter_than_nothing(name: str) -> None:
    for value in (-1, math.nan):
        with pytest.raises(ConfigError, match=f"{name} must be at least 0"):
            AdmissionLimits(**{name: value})
