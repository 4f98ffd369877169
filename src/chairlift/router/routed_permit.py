"""RoutedPermit: the permit and the tenant's reservation of one request; leaving its context ends both."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from chairlift.core.errors import Overloaded, Unavailable
from chairlift.core.sampling_params import MAX_TOKENS
from chairlift.router.attempts.generation_fields import GenerationFields
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.shared_state.tenant_limiter import SharedTenantLimiter, SharedTenantReservation
from chairlift.web.admission import AdmissionController, Permit
from chairlift.web.admit import admit
from chairlift.web.request_info import RequestInfo


class RoutedPermit:
    """One request within the limits.

    Attributes:
        permit: admission permit.
        machine: the request's attempts, once they have begun.
        prompt_tokens: estimated tokens of the prompt.
    """

    def __init__(self, permit: Permit, reservation: SharedTenantReservation) -> None:
        self.permit, self._reservation = permit, reservation
        self.machine: RequestMachine | None = None
        self.prompt_tokens = 0

    @classmethod
    async def acquire(
        cls, info: RequestInfo, tenants: SharedTenantLimiter, admission: AdmissionController, timeout: float | None
    ) -> Self:
        """Admit a request by its tenant's limits and the queue. Raises RateLimited and Overloaded."""
        reservation = await tenants.begin(info.authenticated.tenant)
        return cls(admit(info, admission, timeout, reservation), reservation)

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


def max_output_tokens(fields: Mapping[str, Any], generation: GenerationFields) -> int:
    """Return the most output tokens that a body allows, of all its choices; 0 where it has no limit.

    Those that the client sends as delivered before are not generated again.
    """
    limit = fields.get("max_completion_tokens") or fields.get("max_tokens") or 0
    if type(limit) is not int or not 0 < limit <= MAX_TOKENS:
        return 0
    return max(0, limit * generation.num_choices - sum(map(len, generation.resume)))
