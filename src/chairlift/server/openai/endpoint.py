"""RequestContext and handle_generation: parse a body, check the model's name, and run the endpoint's handler."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from chairlift.server.openai.generation import EndpointHandler, generate
from chairlift.server.openai.parse_request import BaseRequest
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send

RequestT = TypeVar("RequestT", bound=BaseRequest)


@dataclass(frozen=True, slots=True)
class RequestContext(Generic[RequestT]):
    """Describe one parsed request.

    Attributes:
        replica: the replica that serves the request.
        request: the parsed body.
        request_id: the HTTP request's id.
        tenant: the client's tenant.
        timeout: seconds that the request may take; None for no limit.
    """

    replica: Replica
    request: RequestT
    request_id: str
    tenant: str
    timeout: float | None

    def engine_id(self) -> str:
        """Return a new id for one engine request of this HTTP request."""
        return self.replica.new_engine_request_id(self.request_id)


async def handle_generation(
    replica: Replica, scope: Scope, receive: Receive, send: Send, read: Callable[[dict[str, Any]], RequestT],
    make_handler: Callable[[RequestContext[RequestT]], EndpointHandler],
) -> None:  # fmt: skip
    """Parse a body with `read` and serve it with the handler that `make_handler` makes. Raises as generate does."""
    started_at = time.monotonic()
    request = await replica.parse_body(scope, receive, read, is_work=True)
    replica.check_model(request.model)
    timeout = replica.timeout(scope, request.timeout)
    context = RequestContext(replica, request, scope["request_id"], scope["principal"].tenant, timeout)
    await generate(replica, scope, receive, send, request, make_handler(context), started_at)
