"""tenant_rate_limiter.py: no bucket and no tenant exceeds its limits."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import data, floats, integers, lists, sampled_from, tuples

from chairlift.core.clock import FakeClock
from chairlift.core.errors import RateLimited
from chairlift.web.tenant_limits import TenantLimits
from chairlift.web.tenant_rate_limiter import MAX_TENANTS, TenantRateLimiter
from chairlift.web.token_bucket import MINUTE

# -- tenants -------------------------------------------------------------------------------------------------------


def rejection(tenants: TenantRateLimiter, tenant: str = "a", tokens: int = 1) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        tenants.begin(tenant, tokens)
    return caught.value


def test_without_limits_no_request_is_rejected() -> None:
    tenants = TenantRateLimiter(TenantLimits(), FakeClock())
    for _ in range(1000):
        tenants.begin("a", 10**9)


def test_requests_of_a_minute() -> None:
    clock = FakeClock()
    tenants = TenantRateLimiter(TenantLimits(tenant_requests_per_minute=3), clock)
    for _ in range(3):
        tenants.begin("a", 1).end(1)
    error = rejection(tenants)
    assert "your requests of this minute are used up, the limit is 3" in str(error)
    assert error.details["retry_after"] == pytest.approx(20)
    clock.advance(19.9)
    rejection(tenants)
    clock.advance(0.2)
    tenants.begin("a", 1)
    rejection(tenants)


def test_tokens_of_a_minute() -> None:
    clock = FakeClock()
    tenants = TenantRateLimiter(TenantLimits(tenant_tokens_per_minute=600), clock)
    tenants.begin("a", 500)
    error = rejection(tenants, tokens=200)
    assert "your tokens of this minute are used up, the limit is 600" in str(error)
    assert error.details["retry_after"] == pytest.approx(10)
    clock.advance(10.01)
    tenants.begin("a", 200)


def test_tokens_that_were_not_used_are_given_back() -> None:
    tenants = TenantRateLimiter(TenantLimits(tenant_tokens_per_minute=600), FakeClock())
    reservation = tenants.begin("a", 600)
    rejection(tenants)
    reservation.end(100)
    tenants.begin("a", 500)
    rejection(tenants)


def test_a_request_larger_than_a_minute_is_served_by_a_full_bucket_and_then_paid() -> None:
    clock = FakeClock()
    tenants = TenantRateLimiter(TenantLimits(tenant_tokens_per_minute=60), clock)
    tenants.begin("a", 180).end(180)
    assert rejection(tenants, tokens=1000).details["retry_after"] == pytest.approx(180)
    clock.advance(120)
    rejection(tenants, tokens=1)
    clock.advance(1.01)
    tenants.begin("a", 1)


def test_open_requests() -> None:
    tenants = TenantRateLimiter(TenantLimits(tenant_max_open_requests=2), FakeClock())
    reservation = tenants.begin("a", 1)
    tenants.begin("a", 1)
    assert "2 of your requests are open, the limit is 2" in str(rejection(tenants))
    reservation.end(0)
    tenants.begin("a", 1)
    rejection(tenants)


def test_who_is_refused_uses_nothing() -> None:
    """A rejection by one limit uses nothing of the others."""
    tenants = TenantRateLimiter(
        TenantLimits(tenant_requests_per_minute=2, tenant_tokens_per_minute=100, tenant_max_open_requests=2),
        FakeClock(),
    )
    tenants.begin("a", 100).end(0)
    reservation = tenants.begin("a", 100)
    for _ in range(10):
        rejection(tenants, tokens=50)
    reservation.end(0)
    clock = FakeClock()
    tenants = TenantRateLimiter(TenantLimits(tenant_requests_per_minute=10, tenant_tokens_per_minute=100), clock)
    tenants.begin("a", 100)
    for _ in range(100):
        rejection(tenants, tokens=100)
    clock.advance(MINUTE)
    for _ in range(10):
        tenants.begin("a", 10).end(0)


def test_tenants_do_not_share() -> None:
    tenants = TenantRateLimiter(
        TenantLimits(tenant_requests_per_minute=1, tenant_tokens_per_minute=10, tenant_max_open_requests=1), FakeClock()
    )
    tenants.begin("a", 10)
    rejection(tenants, "a")
    tenants.begin("b", 10)
    rejection(tenants, "b")


@settings(max_examples=40)
@given(lists(tuples(sampled_from("ab"), integers(0, 80), integers(0, 80), floats(0, 30)), max_size=25), data())
def test_a_tenant_gets_what_its_limits_allow_and_its_open_requests_return_to_zero(
    steps: list[tuple[str, int, int, float]], draws: Any
) -> None:
    clock = FakeClock()
    tenants = TenantRateLimiter(
        TenantLimits(tenant_requests_per_minute=6, tenant_tokens_per_minute=100, tenant_max_open_requests=3), clock
    )
    running: list[tuple[str, int, Callable[[int], None]]] = []
    num_started = {"a": 0, "b": 0}
    num_tokens = {"a": 0, "b": 0}
    for tenant, tokens, used, seconds in steps:
        clock.advance(seconds)
        try:
            running.append((tenant, min(used, tokens), tenants.begin(tenant, tokens)))
            num_started[tenant] += 1
        except RateLimited:
            pass
        assert sum(name == tenant for name, _, _ in running) <= 3
        if running and draws.draw(integers(0, 1)):
            name, used_tokens, reservation = running.pop(draws.draw(integers(0, len(running) - 1)))
            reservation.end(used_tokens)
            num_tokens[name] += used_tokens
    for name, used_tokens, reservation in running:
        reservation.end(used_tokens)
        num_tokens[name] += used_tokens
    for name in "ab":
        assert num_started[name] <= 6 + clock.now() * 6 / MINUTE + 1e-6
        assert num_tokens[name] <= 100 + clock.now() * 100 / MINUTE + 1e-6
    clock.advance(2 * MINUTE)
    for _ in range(3):
        tenants.begin("a", 1)


def test_the_memory_of_tenants_is_bounded_and_keeps_the_open_ones() -> None:
    tenants = TenantRateLimiter(TenantLimits(tenant_max_open_requests=1), FakeClock())
    tenants.begin("open", 1)
    for number in range(2 * MAX_TENANTS):
        tenants.begin(f"t{number}", 1).end(1)
        assert len(tenants._usages) <= MAX_TENANTS
    rejection(tenants, "open")


def test_a_share_takes_what_it_reserves_and_gives_back_what_it_did_not_use() -> None:
    tenants = TenantRateLimiter(TenantLimits(tenant_tokens_per_minute=100), FakeClock())
    reservation = tenants.begin("a")
    reservation.reserve(90)
    with pytest.raises(RateLimited, match="tokens"):
        tenants.begin("a", 20)
    reservation.end(70)
    tenants.begin("a", 30).end(30)
    with pytest.raises(RateLimited):
        tenants.begin("a").reserve(1)


def test_who_is_refused_for_what_others_do_keeps_its_request_of_the_minute() -> None:
    tenants = TenantRateLimiter(TenantLimits(tenant_requests_per_minute=2), FakeClock())
    for _ in range(5):
        reservation = tenants.begin("a")
        reservation.refund_request()
        reservation.end(0)
    for _ in range(2):
        tenants.begin("a").end(0)
    with pytest.raises(RateLimited):
        tenants.begin("a")


def test_without_a_limit_of_requests_there_is_none_to_keep() -> None:
    reservation = TenantRateLimiter(TenantLimits(tenant_max_open_requests=1), FakeClock()).begin("a")
    reservation.refund_request()
    reservation.end(0)


# -- reloaded limits ---------------------------------------------------------------------------------------------------


def test_what_was_used_of_the_minute_stays_used_under_new_limits() -> None:
    clock = FakeClock()
    tenants = TenantRateLimiter(TenantLimits(tenant_requests_per_minute=3, tenant_tokens_per_minute=100), clock)
    for _ in range(3):
        tenants.begin("a", 10).end(10)
    rejection(tenants)
    tenants.renew(TenantLimits(tenant_requests_per_minute=5, tenant_tokens_per_minute=40))
    tenants.begin("a", 10).end(10)
    assert "your tokens" in str(rejection(tenants))
    tenants.renew(TenantLimits(tenant_requests_per_minute=5, tenant_tokens_per_minute=1000))
    tenants.begin("a", 10).end(10)
    assert "your requests" in str(rejection(tenants))
    clock.advance(12.1)
    tenants.begin("a", 10).end(10)
    rejection(tenants)


def test_a_limit_that_was_taken_away_is_as_used_up_when_it_is_back() -> None:
    clock = FakeClock()
    tenants = TenantRateLimiter(TenantLimits(tenant_requests_per_minute=2), clock)
    for _ in range(2):
        tenants.begin("a").end(0)
    tenants.renew(TenantLimits())
    tenants.begin("a").end(0)
    tenants.renew(TenantLimits(tenant_requests_per_minute=2))
    assert rejection(tenants).details["retry_after"] == pytest.approx(30.0)
    clock.advance(30.0)
    tenants.begin("a").end(0)
    rejection(tenants)


def test_limits_come_and_go_while_requests_are_open() -> None:
    tenants = TenantRateLimiter(TenantLimits(), FakeClock())
    reservation = tenants.begin("a", 50)
    tenants.renew(TenantLimits(tenant_tokens_per_minute=100, tenant_max_open_requests=1))
    assert "are open" in str(rejection(tenants))
    reservation.end(70)
    assert "your tokens" in str(rejection(tenants, tokens=40))
    tenants.renew(TenantLimits())
    for _ in range(5):
        tenants.begin("a", 1000)


# -- what several routers need --------------------------------------------------------------------------------------


def test_released_tokens_can_be_reserved_again_once() -> None:
    limiter = TenantRateLimiter(TenantLimits(tenant_tokens_per_minute=100), FakeClock())
    reservation = limiter.begin("t", 40)
    reservation.reserve(60)
    reservation.release(60)
    assert reservation.reserved_tokens == 40
    reservation.reserve(60)
    with pytest.raises(RateLimited):
        reservation.reserve(1)
    reservation.end(100)


def test_nothing_is_released_that_was_not_reserved() -> None:
    """A request that began without a limit has reserved nothing when there is one."""
    limiter = TenantRateLimiter(TenantLimits(), FakeClock())
    reservation = limiter.begin("t", 50)
    limiter.renew(TenantLimits(tenant_tokens_per_minute=100))
    reservation.release(50)
    usage = limiter.usages["t"].tokens
    assert reservation.reserved_tokens == 0 and usage is not None and usage.in_use(0.0) == 0
    assert limiter.limits.tenant_tokens_per_minute == 100
