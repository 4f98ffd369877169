"""AdmittedRequest: the permit and the tenant's reservation of one request; leaving its context ends both."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from chairlift.core.errors import Overloaded, Unavailable
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.attempts.resume import GenerationFields
from chairlift.web.admission import AdmissionController, Permit
from chairlift.web.body import Scope


class TenantReservation(Protocol):
    """What a request has taken of its tenant's limits."""

    async def reserve(self, tokens: int) -> None:
        """Reserve tokens. Raises RateLimited."""
        ...

    def refund_request(self) -> None:
        """Return the request to the tenant's minute."""
        ...

    def end(self, used: int) -> None:
        """End the request, which used this many tokens."""
        ...


class TenantLimiter(Protocol):
    """The limits of tenants."""

    async def begin(self, tenant: str) -> TenantReservation:
        """Start a request. Raises RateLimited."""
        ...


class AdmittedRequest:
    """One request within the limits.

    Attributes:
        permit: admission permit.
        machine: the request's attempts, once they have begun.
        prompt_tokens: estimated tokens of the prompt.
    """

    def __init__(self, permit: Permit, reservation: TenantReservation) -> None:
        self.permit, self._reservation = permit, reservation
        self.machine: RequestMachine | None = None
        self.prompt_tokens = 0

    async def reserve(self, prompt_tokens: int, max_output_tokens: int) -> None:
        """Reserve the tokens of the request. Raises RateLimited, and Overloaded where the queue has no room."""
        self.prompt_tokens = prompt_tokens
        self.permit.set_prompt_tokens(prompt_tokens)
        await self._reservation.reserve(prompt_tokens + max_output_tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Overloaded | Unavailable):
            self._reservation.refund_request()
        self.permit.end(0 if self.machine is None else self.machine.response.used_tokens(self.prompt_tokens))


async def admit(
    scope: Scope, tenants: TenantLimiter, admission: AdmissionController, timeout: float | None
) -> AdmittedRequest:
    """Admit a request by its tenant's limits and the queue. Raises RateLimited and Overloaded."""
    reservation = await tenants.begin(scope["principal"].tenant)
    try:
        permit: Permit | None = scope.get("permit")
        size: int = scope.get("body_bytes", 0)
        if permit is None:
            permit = admission.admit(0, timeout=timeout, on_end=reservation.end, body_bytes=size)
            scope["permit"] = permit
        else:
            permit.attach(timeout, reservation.end)
    except BaseException as error:
        if isinstance(error, Overloaded):
            reservation.refund_request()
        reservation.end(0)
        raise
    return AdmittedRequest(permit, reservation)


def max_output_tokens(fields: Mapping[str, Any], generation: GenerationFields) -> int:
    """Return the most output tokens that a body allows, of all its choices; 0 where it has no limit.

    Those that the client sends as delivered before are not generated again.
    """
    limit = fields.get("max_completion_tokens") or fields.get("max_tokens") or 0
    if type(limit) is not int or not 0 < limit < 2**31:
        return 0
    return max(0, limit * generation.num_choices - sum(map(len, generation.resume)))
