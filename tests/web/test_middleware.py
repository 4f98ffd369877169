"""Front: every request gets an id, an answer and one line in the log, whatever happens behind it."""

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
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
from chairlift.observability.logging import current_id
from chairlift.web.access_log import AccessRecord
from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.auth import Principal
from chairlift.web.body import App, ClientGone
from chairlift.web.middleware import CLIENT_CLOSED_REQUEST, RequestMiddleware, send_bytes, send_object


@dataclass
class Sent:
    """What an application sent through the front."""

    messages: list[Any]
    seen: list[AccessRecord]
    raised: BaseException | None = None

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        result = [(name.decode(), value.decode()) for name, value in self.messages[0]["headers"]]
        assert len(dict(result)) == len(result)
        return dict(result)

    @property
    def body(self) -> bytes:
        assert not self.messages[-1].get("more_body")
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


def through(
    app: App, *, path: str = "/a", headers: Any = (), quiet: frozenset[str] = frozenset(), kind: str = "http"
) -> Sent:  # fmt: skip
    sent = Sent([], [])

    async def send(message: Any) -> None:
        sent.messages.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": kind, "method": "POST", "path": path, "headers": list(headers), "query_string": b""}
    try:
        asyncio.run(RequestMiddleware(app, quiet=quiet, on_response=sent.seen.append)(scope, receive, send))
    except BaseException as error:
        sent.raised = error
    return sent


def raises(error: BaseException) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise error

    return app


async def fine(scope: Any, receive: Any, send: Any) -> None:
    scope["route_path"], scope["principal"] = "/{id}", Principal("ours")
    await send_object(send, {"id": scope["request_id"], "logged": current_id.get()})


async def begins(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise EngineDead("the engine fell")


class Lines(logging.Handler):
    """Keeps what is logged, and for which request."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.ids: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.ids.append(current_id.get())


@pytest.fixture
def lines(log_as_before: None) -> Iterator[Lines]:
    """The access log, whatever the level of the others."""
    logger, handler = logging.getLogger("chairlift.web.access_log"), Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


# -- ids -----------------------------------------------------------------------------------------------------------


def test_an_answer_has_the_requests_id() -> None:
    sent = through(fine, headers=[(b"x-request-id", b"mine-1")])
    assert sent.headers["x-request-id"] == "mine-1"
    assert orjson.loads(sent.body) == {"id": "mine-1", "logged": "mine-1"}
    assert sent.seen[0].request_id == "mine-1"


@pytest.mark.parametrize("given", [[], [(b"x-request-id", b"a\r\nset-cookie: b")], [(b"x-request-id", b"x" * 10_000)]])
def test_a_new_id_where_none_can_be_kept(given: Any) -> None:
    """53."""
    sent = through(fine, headers=given)
    assert sent.headers["x-request-id"].startswith("req-")
    assert set(sent.headers) == {"content-type", "content-length", "x-request-id"}


def test_an_error_has_the_id_too() -> None:
    sent = through(raises(ValueError("x")), headers=[(b"x-request-id", b"mine-1")])
    assert sent.headers["x-request-id"] == "mine-1"
    assert "(request mine-1)" in sent.error["message"]


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
    sent = through(raises(error))
    assert sent.raised is None
    assert (sent.status, sent.error["code"], sent.seen[0].code, sent.seen[0].status) == (status, code, code, status)
    assert sent.headers["content-type"] == "application/json"
    assert int(sent.headers["content-length"]) == len(sent.body)


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
    assert (through(raises(error)).headers.get("connection") == "close") == closes


def test_headers_of_an_error_are_sent() -> None:
    assert through(raises(Unauthorized("no"))).headers["www-authenticate"] == "Bearer"
    assert through(raises(Overloaded("no", retry_after=3))).headers["retry-after"] == "3"


def test_the_routers_refusals_are_ours() -> None:
    """19 and 20."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["app"] = router
        await router(scope, receive, send)

    router = Router([Route("/a", fine, methods=["GET"])])
    sent = through(app)
    assert (sent.status, sent.error["code"]) == (405, "method_not_allowed")
    assert set(sent.headers["allow"].split(", ")) == {"GET", "HEAD"}
    sent = through(raises(HTTPException(404)))
    assert (sent.status, sent.error["code"]) == (404, "not_found")


def test_an_answer_that_has_begun_is_cut_off() -> None:
    sent = through(begins)
    assert [message["type"] for message in sent.messages] == ["http.response.start", "http.response.body"]
    assert isinstance(sent.raised, EngineDead)
    assert (sent.seen[0].status, sent.seen[0].code) == (200, "engine_dead")


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
    """With a traceback, and by the id that the answer names."""
    logger, handler = logging.getLogger("chairlift.web.middleware"), Lines()
    logger.addHandler(handler)
    try:
        through(raises(error), headers=[(b"x-request-id", b"mine-1")])
    finally:
        logger.removeHandler(handler)
    logged = [record for record in handler.records if record.levelno >= logging.ERROR]
    assert len(logged) == is_logged
    if logged:
        assert logged[0].exc_info is not None and logged[0].exc_info[1] is error
        assert handler.ids == ["mine-1"]


# -- clients that leave, servers that stop -------------------------------------------------------------------------


def test_who_is_gone_gets_nothing() -> None:
    sent = through(raises(ClientGone("left")))
    assert sent.raised is None and sent.messages == []
    assert (sent.seen[0].status, sent.seen[0].code) == (CLIENT_CLOSED_REQUEST, "client_gone")


def test_a_cancelled_request_stays_cancelled_and_is_counted() -> None:
    sent = through(raises(asyncio.CancelledError()))
    assert isinstance(sent.raised, asyncio.CancelledError)
    assert sent.messages == [] and [seen.status for seen in sent.seen] == [CLIENT_CLOSED_REQUEST]


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_request_is_nothing(kind: str) -> None:
    sent = through(raises(ValueError("x")), kind=kind)
    assert sent.messages == [] and sent.seen == [] and sent.raised is None


# -- access records ------------------------------------------------------------------------------------------------


def test_every_request_is_seen_once() -> None:
    (seen,) = through(fine).seen
    assert (seen.method, seen.route, seen.status, seen.code, seen.tenant) == ("POST", "/{id}", 200, "", "ours")
    assert seen.seconds >= 0


def test_a_path_without_a_route_is_no_label() -> None:
    """63."""
    (seen,) = through(raises(NotFound("no")), path="/made/up").seen
    assert (seen.route, seen.tenant) == ("", "")


def test_a_line_in_the_access_log(lines: Lines) -> None:
    through(fine, path="/v1/" + "x" * 1000, headers=[(b"x-request-id", b"mine-1")])
    (record,) = lines.records
    assert record.getMessage().startswith("POST /v1/xxx") and len(record.getMessage()) < 300
    assert " 200 " in record.getMessage()
    fields = {name: getattr(record, name) for name in ("request_id", "status", "code", "tenant")}
    assert fields == {"request_id": "mine-1", "status": 200, "code": "", "tenant": "ours"}


def test_a_quiet_path_is_in_the_log_only_when_it_fails(lines: Lines) -> None:
    quiet = frozenset({"/a"})
    through(fine, quiet=quiet)
    through(raises(Unauthorized("no")), quiet=quiet)
    assert lines.records == []
    through(raises(Unavailable("no")), quiet=quiet)
    through(fine, quiet=frozenset({"/b"}))
    assert [record.status for record in lines.records] == [503, 200]  # type: ignore[attr-defined]


# -- sending -------------------------------------------------------------------------------------------------------


def test_whole_answers() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send_bytes(send, b"hello", status=201, kind=b"text/plain", headers=[(b"x-a", b"b")])

    sent = through(app)
    assert (sent.status, sent.body) == (201, b"hello")
    assert sent.headers.items() >= {"content-type": "text/plain", "content-length": "5", "x-a": "b"}.items()


@pytest.mark.parametrize("app", [fine, begins, raises(NotFound("no")), raises(ClientGone("gone"))])
def test_a_permit_that_was_not_finished_is_given_back(app: App) -> None:
    line = AdmissionController(AdmissionLimits())

    async def with_permit(scope: Any, receive: Any, send: Any) -> None:
        scope["permit"] = line.admit(3)
        await app(scope, receive, send)

    through(with_permit)
    assert (line.waiting_requests, line.waiting_tokens, line.open_requests) == (0, 0, 0)
