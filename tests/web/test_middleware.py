"""RequestMiddleware: each request gets an id, a response and one line in the access log."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from chairlift.core.errors import (
    BodyTooLarge,
    EngineDead,
    InvalidRequest,
    NonFiniteLogits,
    NotFound,
    Overloaded,
    Unauthorized,
    Unavailable,
)
from chairlift.observability.logging import current_id, current_trace_id
from chairlift.observability.tracing.tracer import SamplingConfig, Tracer
from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.auth.principal import Principal
from chairlift.web.body import App, ClientGone
from chairlift.web.middleware import CLIENT_CLOSED_REQUEST, RequestMiddleware
from chairlift.web.request_info import request_info
from chairlift.web.send_response import send_object
from support_middleware import send_through
from support_tracing import TraceList


def raising_app(error: BaseException) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise error

    return app


async def respond(scope: Any, receive: Any, send: Any) -> None:
    info = request_info(scope)
    info.route_path, info.principal = "/{id}", Principal("ours")
    await send_object(send, {"id": info.request_id, "logged": current_id.get()})


async def fail_after_start(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise EngineDead("the engine fell")


class RecordingHandler(logging.Handler):
    """A log handler that keeps the records and their request ids."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.ids: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.ids.append(current_id.get())


@pytest.fixture
def access_log() -> Iterator[RecordingHandler]:
    """The access log at level INFO, independent of other loggers."""
    logger, handler = logging.getLogger("chairlift.web.access_log"), RecordingHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


# -- ids -----------------------------------------------------------------------------------------------------------


def test_an_answer_has_the_requests_id() -> None:
    result = send_through(respond, headers=[(b"x-request-id", b"mine-1")])
    assert result.headers["x-request-id"] == "mine-1"
    assert orjson.loads(result.body) == {"id": "mine-1", "logged": "mine-1"}
    assert result.records[0].request_id == "mine-1"


@pytest.mark.parametrize(
    "headers", [[], [(b"x-request-id", b"a\r\nset-cookie: b")], [(b"x-request-id", b"x" * 10_000)]]
)
def test_a_new_id_where_none_can_be_kept(headers: Any) -> None:
    """Case 53 of the HTTP contract."""
    result = send_through(respond, headers=headers)
    assert result.headers["x-request-id"].startswith("req-")
    assert set(result.headers) == {"content-type", "content-length", "x-request-id"}


def test_an_error_has_the_id_too() -> None:
    result = send_through(raising_app(ValueError("x")), headers=[(b"x-request-id", b"mine-1")])
    assert result.headers["x-request-id"] == "mine-1"
    assert "(request mine-1)" in result.error["message"]


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("no", param="n"), 400, "invalid_request"),
        (Unauthorized("no"), 401, "invalid_api_key"),
        (NotFound("no"), 404, "not_found"),
        (BodyTooLarge("no"), 413, "body_too_large"),
        (Overloaded("no", retry_after=3), 429, "overloaded"),
        (NonFiniteLogits("no"), 500, "non_finite_logits"),
        (EngineDead("no"), 503, "engine_dead"),
        (ValueError("no"), 500, "internal_error"),
        (RecursionError("no"), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_becomes_an_answer(error: Exception, status: int, code: str) -> None:
    result = send_through(raising_app(error))
    assert result.exception is None
    assert (result.status, result.error["code"]) == (status, code)
    assert (result.records[0].status, result.records[0].code) == (status, code)
    assert result.headers["content-type"] == "application/json"
    assert int(result.headers["content-length"]) == len(result.body)


@pytest.mark.parametrize(
    ("error", "closes"),
    [
        (BodyTooLarge("no"), True),
        (Unavailable("no", state="draining"), True),
        (Unavailable("no", state="starting"), False),
        (InvalidRequest("no"), False),
    ],
)
def test_a_connection_that_cannot_go_on_is_closed(error: Exception, closes: bool) -> None:
    assert (send_through(raising_app(error)).headers.get("connection") == "close") == closes


def test_headers_of_an_error_are_sent() -> None:
    assert send_through(raising_app(Unauthorized("no"))).headers["www-authenticate"] == "Bearer"
    assert send_through(raising_app(Overloaded("no", retry_after=3))).headers["retry-after"] == "3"


def test_the_routers_refusals_are_ours() -> None:
    """Cases 19 and 20 of the HTTP contract."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["app"] = router
        await router(scope, receive, send)

    router = Router([Route("/a", respond, methods=["GET"])])
    result = send_through(app)
    assert (result.status, result.error["code"]) == (405, "method_not_allowed")
    assert set(result.headers["allow"].split(", ")) == {"GET", "HEAD"}
    result = send_through(raising_app(HTTPException(404)))
    assert (result.status, result.error["code"]) == (404, "not_found")


def test_an_answer_that_has_begun_is_cut_off() -> None:
    result = send_through(fail_after_start)
    assert [message["type"] for message in result.messages] == ["http.response.start", "http.response.body"]
    assert isinstance(result.exception, EngineDead)
    assert (result.records[0].status, result.records[0].code) == (200, "engine_dead")


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [
        (ValueError("the reason"), True),
        (NonFiniteLogits("the reason"), True),
        (EngineDead("the reason"), False),
        (Unavailable("the reason"), False),
        (InvalidRequest("the reason"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_servers_own_mistakes_are_logged(error: Exception, is_logged: bool) -> None:
    """The log has the traceback and the request id of the response."""
    logger, handler = logging.getLogger("chairlift.web.middleware"), RecordingHandler()
    logger.addHandler(handler)
    try:
        send_through(raising_app(error), headers=[(b"x-request-id", b"mine-1")])
    finally:
        logger.removeHandler(handler)
    errors = [record for record in handler.records if record.levelno >= logging.ERROR]
    assert len(errors) == is_logged
    if errors:
        assert errors[0].exc_info is not None and errors[0].exc_info[1] is error
        assert handler.ids == ["mine-1"]


# -- disconnects and cancelled requests ----------------------------------------------------------------------------


def test_who_is_gone_gets_nothing() -> None:
    result = send_through(raising_app(ClientGone("left")))
    assert result.exception is None and result.messages == []
    assert (result.records[0].status, result.records[0].code) == (CLIENT_CLOSED_REQUEST, "client_gone")


def test_a_cancelled_request_stays_cancelled_and_is_counted() -> None:
    result = send_through(raising_app(asyncio.CancelledError()))
    assert isinstance(result.exception, asyncio.CancelledError)
    assert result.messages == [] and [record.status for record in result.records] == [CLIENT_CLOSED_REQUEST]


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_request_is_nothing(kind: str) -> None:
    result = send_through(raising_app(ValueError("x")), kind=kind)
    assert result.messages == [] and result.records == [] and result.exception is None


# -- access records ------------------------------------------------------------------------------------------------


def test_every_request_is_seen_once() -> None:
    (record,) = send_through(respond).records
    assert (record.method, record.route, record.tenant) == ("POST", "/{id}", "ours")
    assert (record.status, record.code) == (200, "")
    assert record.seconds >= 0


def test_a_path_without_a_route_is_no_label() -> None:
    """Case 63 of the HTTP contract."""
    (record,) = send_through(raising_app(NotFound("no")), path="/made/up").records
    assert (record.route, record.tenant) == ("", "")


def test_a_line_in_the_access_log(access_log: RecordingHandler) -> None:
    send_through(respond, path="/v1/" + "x" * 1000, headers=[(b"x-request-id", b"mine-1")])
    (record,) = access_log.records
    assert record.getMessage().startswith("POST /v1/xxx") and len(record.getMessage()) < 300
    assert " 200 " in record.getMessage()
    fields = {name: getattr(record, name) for name in ("request_id", "status", "code", "tenant")}
    assert fields == {"request_id": "mine-1", "status": 200, "code": "", "tenant": "ours"}


def test_a_quiet_path_is_in_the_log_only_when_it_fails(access_log: RecordingHandler) -> None:
    unlogged_paths = frozenset({"/a"})
    send_through(respond, unlogged_paths=unlogged_paths)
    send_through(raising_app(Unauthorized("no")), unlogged_paths=unlogged_paths)
    assert access_log.records == []
    send_through(raising_app(Unavailable("no")), unlogged_paths=unlogged_paths)
    send_through(respond, unlogged_paths=frozenset({"/b"}))
    assert [record.status for record in access_log.records] == [503, 200]  # type: ignore[attr-defined]


# -- sending -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "app", [respond, fail_after_start, raising_app(NotFound("no")), raising_app(ClientGone("gone"))]
)
def test_a_permit_that_was_not_finished_is_given_back(app: App) -> None:
    admission = AdmissionController(AdmissionLimits())

    async def with_permit(scope: Any, receive: Any, send: Any) -> None:
        request_info(scope).permit = admission.admit(3)
        await app(scope, receive, send)

    send_through(with_permit)
    assert (admission.waiting_requests, admission.waiting_tokens, admission.open_requests) == (0, 0, 0)


def test_a_traced_request_has_its_id_in_the_response_and_in_its_log_lines(access_log: RecordingHandler) -> None:
    """A request that is not sampled has none, although it begins in the context of one that is."""
    sink, messages = TraceList(), list[Any]()

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def replica(scope: Any, receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": [(b"x-trace-id", b"its own")]}
        await send(start)
        await send({"type": "http.response.body", "body": current_trace_id.get().encode()})

    async def scenario() -> None:
        app = RequestMiddleware(replica, quiet=frozenset({"/quiet"}), tracer=Tracer(SamplingConfig(), sink))
        for path, parent in (("/a", b"01"), ("/a", b"00"), ("/quiet", b"01")):
            headers = [(b"traceparent", b"00-%s-%s-%s" % (b"a" * 32, b"b" * 16, parent))]
            await app({"type": "http", "method": "GET", "path": path, "headers": headers}, receive, send)

    asyncio.run(scenario())
    (trace,) = sink.traces
    own = ("a" * 32).encode()
    assert [message["body"] for message in messages[1::2]] == [own, b"", b""]
    assert [dict(message["headers"])[b"x-trace-id"] for message in messages[::2]] == [own, b"its own", b"its own"]
    assert trace.server.attributes["http.response.status_code"] == 200 and len(access_log.records) == 2
