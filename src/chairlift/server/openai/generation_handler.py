"""RequestContext and handle_generation: serve one request of a generation route, from its body to its response."""

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from chairlift.llm.text_service import RequestOptions, Resume
from chairlift.protocol.router_headers import PROGRESS_HEADER, ROUTER_HEADER
from chairlift.server.openai.admitted_request_and_generation import AdmittedRequest, EndpointHandler, prepare
from chairlift.server.openai.base_request import BaseRequest
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send, has_flag
from chairlift.web.disconnect import DisconnectWatcher
from chairlift.web.error_responses import Header
from chairlift.web.request_info import request_info

RequestT = TypeVar("RequestT", bound=BaseRequest)


@dataclass(frozen=True, slots=True)
class RequestContext(Generic[RequestT]):
    """One parsed request.

    Attributes:
        replica: the replica that serves the request.
        request: the parsed body.
        request_id: the HTTP request's id.
        tenant: the client's tenant.
        timeout: seconds that the request may take; None for no limit.
        headers: further headers of the response.
        is_from_router: whether a router sends the request, which can resume it on another replica.
        reports_progress: whether the tokens of a response that is not streamed are sent as they come.
    """

    replica: Replica
    request: RequestT
    request_id: str
    tenant: str
    timeout: float | None
    headers: tuple[Header, ...] = ()
    is_from_router: bool = False
    reports_progress: bool = False

    def engine_options(self, resume: Resume | None = None) -> RequestOptions:
        """Return the options of one engine request of this HTTP request, with a new request id.

        `resume` has the delivered tokens of its choices; None for those of the whole HTTP request.
        """
        request = self.request
        return RequestOptions(
            request_id=self.replica.new_engine_request_id(self.request_id), priority=request.priority,
            tenant=self.tenant, timeout=self.timeout, resume=request.resume if resume is None else resume,
            cache_salt=request.cache_salt, prediction=request.prediction,
        )  # fmt: skip


async def handle_generation(
    replica: Replica, scope: Scope, receive: Receive, send: Send, read: Callable[[dict[str, Any]], RequestT],
    make_handler: Callable[[RequestContext[RequestT]], EndpointHandler],
) -> None:  # fmt: skip
    """Parse a body with `read`, admit the request, prepare its engine requests, run them and respond.

    Admission comes before preparation: a request that is rejected by load or expected wait is never tokenized.
    Raises the errors of every step until a byte was sent.
    """
    started_at = time.monotonic()
    context = await parse(replica, scope, receive, read)
    with AdmittedRequest.begin(replica, scope, context.timeout) as admitted:
        async with DisconnectWatcher(receive) as watcher:
            generation = await prepare(
                admitted, make_handler(context), context.request, started_at,
                reports_progress=context.reports_progress, is_from_router=context.is_from_router,
            )  # fmt: skip
            async with aclosing(generation.run()) as batches:
                with generation.resumable():
                    admitted.stream_error = await generation.respond(batches, send, context.headers)
            watcher.response_complete()


async def parse(
    replica: Replica, scope: Scope, receive: Receive, read: Callable[[dict[str, Any]], RequestT]
) -> RequestContext[RequestT]:  # fmt: skip
    """Parse a body with `read`, and check the model's name, "" is the served one, and the fields without effect.

    Raises InvalidRequest, ModelNotFound and FingerprintMismatch.
    """
    request = await replica.bodies.parse_body(scope, receive, read, is_work=True)
    model = replica.resolve_model(request.model)
    if not request.model:
        request = replace(request, model=model)
    replica.reporter.check_fingerprint(request.resume_fingerprint)
    timeout = replica.timeout(scope, request.timeout)
    info = request_info(scope)
    info.user = request.user
    headers = tuple(replica.ignored_fields_header(request.ignored))
    return RequestContext(
        replica, request, info.request_id, info.authenticated.tenant, timeout, headers,
        is_from_router=has_flag(scope, ROUTER_HEADER),
        reports_progress=has_flag(scope, PROGRESS_HEADER) and not request.stream,
    )  # fmt: skip
