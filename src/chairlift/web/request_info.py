"""RequestInfo: what the parts of a service know about one HTTP request, as one value in its ASGI scope."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chairlift.observability.tracing.span import RequestTrace
from chairlift.web.admission import Permit
from chairlift.web.auth.principal import Principal
from chairlift.web.body import Scope
from chairlift.web.error_responses import Header

SCOPE_KEY = "chairlift.request_info"
"""Key of the value in a scope. The other keys of a scope are those of ASGI, uvicorn and Starlette."""


@dataclass(slots=True)
class RequestInfo:
    """What is known about a request so far; it belongs to the event loop that serves the request.

    Attributes:
        request_id: id of the request, which its client may repeat; "" before RequestMiddleware has set it.
        principal: the client, as its key or token identifies it; None before AuthMiddleware has checked it.
        permit: admission permit; None before the request is admitted, and on routes that need no admission.
        body_bytes: bytes of the body, once it was read.
        was_submitted: whether the engine or a replica has the request or has had it.
        user: the end user whom the body names, for the access log.
        route_path: path of the route, with names in place of values; "" before the route is chosen.
        response_headers: returns further headers of every response, errors included; None for none.
        first_token_at: time of the response's first token, on the clock of time.monotonic(), once it is known.
        trace: the request's trace; None if it is not sampled.
    """

    request_id: str = ""
    principal: Principal | None = None
    permit: Permit | None = None
    body_bytes: int = 0
    was_submitted: bool = False
    user: str = ""
    route_path: str = ""
    response_headers: Callable[[], Iterable[Header]] | None = None
    first_token_at: float | None = None
    trace: RequestTrace | None = None

    @property
    def authenticated(self) -> Principal:
        """The principal of a request that has passed AuthMiddleware."""
        assert self.principal is not None, "the request has not passed AuthMiddleware"
        return self.principal


def request_info(scope: Scope) -> RequestInfo:
    """Return the RequestInfo of a request; the first call makes it."""
    info: RequestInfo | None = scope.get(SCOPE_KEY)
    if info is None:
        info = scope[SCOPE_KEY] = RequestInfo()
    return info
