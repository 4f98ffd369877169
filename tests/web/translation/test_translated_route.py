"""TranslatedRoute: another route serves the request, and the client sees its own fields, errors and path."""

import json
import threading
from typing import Any

import pytest

from chairlift.core.errors import (
    BodyTooLarge,
    ContextLengthExceeded,
    EngineDead,
    InvalidRequest,
    MalformedRequest,
    Overloaded,
    Unavailable,
)
from chairlift.protocol.translation.base import ClientRequest
from chairlift.web.body import App
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.request_info import request_info
from chairlift.web.send_response import send_object
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.translation.translated_route import MAX_NESTING, TranslatedRoute
from support_translation import EchoTranslator, open_admission, ready_lifecycle, request


class Inner:
    """Responds with what it has received."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.scope: dict[str, Any] = {}
        self.last_type = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = dict(scope)
        body = (await receive())["body"]
        self.last_type = (await receive())["type"]
        info = request_info(scope)
        info.was_submitted, info.first_token_at = True, 12.5
        if self.error is not None:
            raise self.error
        await send_object(send, {"body": json.loads(body), "path": scope["path"]})


def route(inner: App, **fields: Any) -> TranslatedRoute:
    options = {"config": HttpConfig(), "lifecycle": ready_lifecycle(), "admission": open_admission(), **fields}
    return TranslatedRoute(inner, EchoTranslator(), **options)


def test_the_inner_route_gets_a_request_of_its_own() -> None:
    inner = Inner()
    headers = {"content-length": "7", "content-type": "application/json; charset=utf-8", "x-chairlift-progress": "1",
               "x-session-id": "s"}  # fmt: skip
    sent = request(route(inner), b'{"say": "Hi"}', headers=headers, query="beta=true")
    assert json.loads(sent.body) == {"translated": {"body": {"inner": "Hi"}, "path": "/inner"}}
    assert inner.scope["raw_path"] == b"/inner" and inner.scope["query_string"] == b""
    assert dict(inner.scope["headers"]) == {
        b"x-session-id": b"s",
        b"content-type": b"application/json",
        b"content-length": b"14",
    }
    assert inner.last_type == "http.disconnect"  # what the client does comes through


def test_the_scope_is_the_clients_own_afterwards_with_what_the_inner_route_noted() -> None:
    sent = request(route(Inner()), b'{"say": "Hi"}', query="a=b", headers={"x": "y"})
    assert (sent.scope["path"], sent.scope["query_string"], sent.scope["headers"]) == ("/outer", b"a=b", [(b"x", b"y")])
    assert request_info(sent.scope).was_submitted is True


def test_the_translator_knows_the_client() -> None:
    translated = route(Inner())
    request(translated, b'{"say": 1}', tenant="alice")
    (client,) = translated.translator.clients  # type: ignore[attr-defined]
    assert client == ClientRequest("alice", "request-1") and client.first_token_at() == 12.5
    assert ClientRequest().first_token_at() is None


def test_errors_name_the_requests_own_field() -> None:
    with pytest.raises(InvalidRequest, match=r"^say must be short") as caught:
        request(route(Inner(InvalidRequest("inner must be short", param="inner"))), b'{"say": 1}')
    assert caught.value.details["param"] == "say"
    with pytest.raises(InvalidRequest, match=r"^other must be"):
        request(route(Inner(InvalidRequest("other must be short", param="other"))), b'{"say": 1}')
    with pytest.raises(InvalidRequest, match=r"^no field"):
        request(route(Inner(InvalidRequest("no field"))), b'{"say": 1}')
    with pytest.raises(ContextLengthExceeded) as too_long:
        request(route(Inner(ContextLengthExceeded(9, None, 5))), b'{"say": 1}')
    assert too_long.value.details["limit"] == 5
    with pytest.raises(EngineDead):
        request(route(Inner(EngineDead("gone"))), b'{"say": 1}')


def test_what_is_wrong_with_the_request_itself() -> None:
    inner = Inner()
    with pytest.raises(InvalidRequest, match="say is missing"):
        request(route(inner), b"{}")
    with pytest.raises(MalformedRequest):
        request(route(inner), b"{")
    with pytest.raises(BodyTooLarge):
        request(route(inner, config=HttpConfig(max_body_bytes=5)), b'{"say": 1}')
    with pytest.raises(Unavailable):
        request(route(inner, lifecycle=Lifecycle()), b'{"say": 1}')
    assert inner.scope == {}


def test_a_full_queue_rejects_before_the_translation() -> None:
    admission = open_admission(max_waiting_requests=1)
    admission.admit(0)
    translated = route(Inner(), admission=admission)
    with pytest.raises(Overloaded):
        request(translated, b'{"say": 1}')
    assert translated.translator.clients == []  # type: ignore[attr-defined]


def test_fields_without_effect_are_named_or_rejected() -> None:
    assert request(route(Inner()), b'{"say": 1, "x": 2}').headers["x-ignored-parameters"] == "x"
    with pytest.raises(InvalidRequest, match="x has no effect, and this server rejects"):
        request(route(Inner(), is_strict=True), b'{"say": 1, "x": 2}')


def test_the_steps_of_a_request() -> None:
    inner = Inner()
    translated = route(inner)

    async def read_and_translate(scope: Any, receive: Any, send: Any) -> None:
        read = await translated.read(scope, receive)
        assert read.fields == {"say": "Hi", "x": 1} and read.is_quick
        translation = await translated.translate(read, scope)
        assert translated.ignored_header(translation) == [(b"x-ignored-parameters", b"x")] and inner.scope == {}
        translation.body["inner"] = "Ho"
        await translated.serve(translation, read, scope, receive, send)

    sent = request(read_and_translate, b'{"say": "Hi",  "x":1}')
    assert json.loads(sent.body)["translated"]["body"] == {"inner": "Ho"}


def test_a_large_body_is_translated_in_another_thread() -> None:
    text = "a" * 100_000
    sent = request(route(Inner()), json.dumps({"say": text}).encode())
    assert json.loads(sent.body)["translated"]["body"] == {"inner": text}


def test_a_body_that_could_not_be_written_again_is_rejected() -> None:
    def nested(levels: int) -> bytes:
        return b'{"say": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    sent = request(route(Inner()), nested(MAX_NESTING))
    assert sent.status == 200 and sent.body.count(b"[") == MAX_NESTING - 1
    for levels in (MAX_NESTING + 1, 300, 1000):
        with pytest.raises(MalformedRequest, match="nested deeper than 240 levels"):
            request(route(Inner()), nested(levels))


def test_a_small_body_that_is_slow_to_translate_leaves_the_event_loop() -> None:
    threads: list[str] = []

    class Translator(EchoTranslator):
        def translate(self, body: Any, client: ClientRequest) -> Any:
            threads.append(threading.current_thread().name)
            return super().translate(body, client)

    for is_slow in (False, True):
        options: Any = (HttpConfig(), ready_lifecycle(), open_admission(), False, lambda body, slow=is_slow: slow)
        request(TranslatedRoute(Inner(), Translator(), *options), b'{"say": 1}')
    assert threads[0] == "MainThread" != threads[1]
