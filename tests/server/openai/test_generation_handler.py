"""parse: a body and its headers become the context of a request, or an error."""

import json
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, ModelNotFound
from chairlift.server.config import ServerConfig
from chairlift.server.openai.completion_request import CompletionRequest, read_completion
from chairlift.server.openai.generation_handler import RequestContext, parse
from chairlift.server.replica import Replica
from chairlift.web.auth.principal import Principal
from chairlift.web.request_info import SCOPE_KEY, RequestInfo
from support_server import run
from support_services import fake_service


def parsed(*headers: tuple[bytes, bytes], **body: Any) -> tuple[RequestContext[CompletionRequest], RequestInfo]:
    """Parse a body of the route; returns the context and what is known of the request."""
    info = RequestInfo(request_id="mine", principal=Principal("alice"))
    scope = {"headers": list(headers), SCOPE_KEY: info}

    async def parse_body() -> RequestContext[CompletionRequest]:
        replica = Replica(ServerConfig(served_names=("m",)))
        replica.attach_service(fake_service(), lambda: None, 2048)
        messages = [{"type": "http.request", "body": json.dumps({"model": "m", "prompt": "x", **body}).encode()}]

        async def receive() -> Any:
            return messages.pop()

        try:
            return await parse(replica, scope, receive, read_completion)
        finally:
            await replica.close()

    return run(parse_body()), info


def test_a_context_has_the_request_its_tenant_and_its_timeout() -> None:
    context, info = parsed((b"x-request-timeout-ms", b"1500"), timeout=9, user="bob", unknown=1)
    assert (context.request_id, context.tenant, context.timeout) == ("mine", "alice", 1.5)
    assert context.request.prompts == ("x",) and info.user == "bob"
    assert context.headers == ((b"x-ignored-parameters", b"unknown"),)


def test_an_invalid_request_is_not_parsed() -> None:
    with pytest.raises(ModelNotFound):
        parsed(model="other")
    with pytest.raises(InvalidRequest, match="n must be"):
        parsed(n=0)
    with pytest.raises(InvalidRequest, match="x-request-timeout-ms"):
        parsed((b"x-request-timeout-ms", b"soon"))


def test_a_routers_flags_are_read_from_the_headers() -> None:
    for headers, body, expected in (
        ([], {}, (False, False)),
        ([(b"x-chairlift-router", b"1")], {}, (True, False)),
        ([(b"x-chairlift-progress", b"1")], {}, (False, True)),
        ([(b"x-chairlift-progress", b"1")], {"stream": True}, (False, False)),
        ([(b"x-chairlift-router", b"yes"), (b"x-chairlift-progress", b"0")], {}, (False, False)),
    ):
        context, _ = parsed(*headers, **body)
        assert (context.is_from_router, context.reports_progress) == expected, headers


def test_a_request_id_that_comes_again_has_an_engine_request_of_its_own() -> None:
    """A router replays a request with the same id, while the first attempt may still run."""
    context, _ = parsed()
    first, second = (context.engine_options()["request_id"] for _ in range(2))
    assert first != second and first is not None and first.startswith("mine.")
