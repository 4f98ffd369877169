"""RoutedPermit: what a request takes of its tenant's limits, and what it returns."""

import contextlib
from typing import Any

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import ChairliftError, InvalidRequest, Overloaded, RateLimited, Unavailable
from chairlift.router.attempts.generation_fields import GenerationFields
from chairlift.router.routed_permit import RoutedPermit, max_output_tokens
from chairlift.router.shared_state.tenant_limiter import SharedTenantLimiter
from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.auth.principal import Principal
from chairlift.web.request_info import RequestInfo
from chairlift.web.tenant_limits import TenantLimits
from support_server import run
from support_shares import for_each

LIMITS = TenantLimits(tenant_requests_per_minute=1, tenant_tokens_per_minute=100, tenant_max_open_requests=1)


@for_each(("fields", "num_choices", "tokens"), [
    ({}, 1, 0), ({"max_tokens": 5}, 1, 5), ({"max_completion_tokens": 7, "max_tokens": 5}, 1, 7),
    ({"max_tokens": 5}, 3, 15), ({"max_tokens": "x"}, 1, 0), ({"max_tokens": -1}, 1, 0), ({"max_tokens": 2**40}, 1, 0),
    ({"max_tokens": [1]}, 1, 0), ({"max_tokens": True}, 1, 0),
])  # fmt: skip
def test_output_tokens_of_all_choices_are_reserved(fields: dict[str, Any], num_choices: int, tokens: int) -> None:
    assert max_output_tokens(fields, GenerationFields(num_choices=num_choices)) == tokens


@pytest.mark.parametrize(("resume", "tokens"), [(((1, 2), (3,)), 7), (((1,) * 20,), 0)])
def test_tokens_that_were_delivered_before_are_not_reserved(resume: tuple[tuple[int, ...], ...], tokens: int) -> None:
    assert max_output_tokens({"max_tokens": 5}, GenerationFields(num_choices=2, resume=resume)) == tokens


@pytest.mark.parametrize(("error", "is_refunded"), [
    (Overloaded("full"), True), (Unavailable("none"), True), (InvalidRequest("bad"), False), (None, False),
])  # fmt: skip
def test_a_rejection_by_load_is_refunded(error: ChairliftError | None, is_refunded: bool) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        tenants = SharedTenantLimiter(LIMITS, None, clock)
        admission = AdmissionController(AdmissionLimits(), clock)

        async def acquire() -> RoutedPermit:
            info = RequestInfo(principal=Principal("t"), body_bytes=10)
            return await RoutedPermit.acquire(info, tenants, admission, None)

        with contextlib.suppress(Overloaded, Unavailable, InvalidRequest):  # noqa: SIM117  # acquire() is awaited inside
            with await acquire() as admitted:
                await admitted.reserve(50, 50)
                assert (admission.waiting_tokens, admission.waiting_bytes) == (50, 10)
                with pytest.raises(RateLimited):  # it is open
                    await acquire()
                if error is not None:
                    raise error
        assert admission.open_requests == admission.waiting_tokens == admission.waiting_bytes == 0
        if is_refunded:
            with await acquire() as admitted:
                await admitted.reserve(50, 50)  # the tokens were returned, too
        else:
            with pytest.raises(RateLimited):
                await acquire()

    run(scenario())


def test_a_permit_of_the_early_check_is_used() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        admission = AdmissionController(AdmissionLimits(), clock)
        permit = admission.admit(0)
        info = RequestInfo(principal=Principal("t"), permit=permit)
        tenants = SharedTenantLimiter(LIMITS, None, clock)
        with await RoutedPermit.acquire(info, tenants, admission, None) as admitted:
            assert admitted.permit is permit and admission.open_requests == 1
        assert admission.open_requests == 0

    run(scenario())
