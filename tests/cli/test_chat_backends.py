"""Chat backends: a local model and a server give the same answer."""

import errno
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from chairlift.cli.chat_backends import AnswerStats, ChatFailed, LocalBackend, RemoteBackend
from chairlift.core.errors import ConfigError, InvalidRequest, NonFiniteLogits
from support_server import Server, fake_server
from support_services import FAKE, fake_service

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
OPTIONS = {"max_tokens": 5, "seed": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server() as running:
        yield running


def test_both_backends_give_the_same_answer_and_statistics(server: Server) -> None:
    service = fake_service()
    answers = []
    for backend in (
        LocalBackend(service),
        RemoteBackend(server.url, None, ""),
        RemoteBackend(server.url + "/v1/", "fake", "k"),
    ):
        stats = AnswerStats()
        text = "".join(backend.stream_answer(MESSAGES, OPTIONS, stats))
        answers.append((text, stats.prompt_tokens, stats.output_tokens, stats.finish_reason))
        assert stats.first_token_seconds is not None and 0 <= stats.first_token_seconds <= stats.seconds
    service.client.close()
    assert answers == [answers[0]] * 3 and answers[0][1:] == (13, 5, "length") and len(answers[0][0]) == 5


def test_backends_have_names(server: Server) -> None:
    assert RemoteBackend(server.url, None, "").name == f"fake at {server.url}"
    service = fake_service()
    assert LocalBackend(service).name == "fake"
    service.client.close()


def test_invalid_messages_and_options_are_rejected(server: Server) -> None:
    service = fake_service()
    for backend in (LocalBackend(service), RemoteBackend(server.url, None, "")):
        with pytest.raises(InvalidRequest, match="temperature"):
            list(backend.stream_answer(MESSAGES, {"temperature": 9}, AnswerStats()))
        with pytest.raises(InvalidRequest, match="512"):
            list(backend.stream_answer([{"role": "user", "content": "x" * 1000}], {}, AnswerStats()))
    service.client.close()


def test_an_answer_that_fails() -> None:
    service = fake_service(replace(FAKE, nan=ord("~")))
    with pytest.raises(NonFiniteLogits):
        list(LocalBackend(service).stream_answer([{"role": "user", "content": "~"}], OPTIONS, AnswerStats()))
    service.client.close()


def test_closing_an_answer_early_aborts_the_request() -> None:
    service = fake_service(replace(FAKE, seconds_per_step=0.01))
    answer = LocalBackend(service).stream_answer(MESSAGES, {"max_tokens": 400, "seed": 1}, AnswerStats())
    next(answer)
    answer.close()  # type: ignore[attr-defined]
    assert service.client.load().running_requests == 0
    service.client.close()


def test_invalid_urls_are_rejected() -> None:
    for url in ("localhost:8000", "ftp://a", "http://", ""):
        with pytest.raises(ConfigError):
            RemoteBackend(url, "m", "")
    with pytest.raises(ChatFailed, match="does not respond"):
        RemoteBackend("http://127.0.0.1:9", None, "")


class ScriptedHandler(BaseHTTPRequestHandler):
    """Responds with the scripted status and body of the path."""

    responses: dict[str, tuple[int, bytes]] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._respond()

    def _respond(self) -> None:
        status, body = self.responses[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def scripted_url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), ScriptedHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.share(1)
@pytest.mark.parametrize(("status", "body", "sentence"), [
    (500, b"<html>oops</html>", "oops"),
    (401, b'{"error": {"message": "a key is needed"}}', "a key is needed"),
    (200, b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', "before the end of its response"),
    (200, b'event: error\ndata: {"error": {"message": "it broke"}}\n\n', "it broke"),
    (200, b'data: {"error": "it broke"}\n\n', "it broke"), (302, b"", "Found"),
    (200, b"data: [1]\n\n", "an event that is no part"), (200, b"data: {\n\n", "an event that is no part"),
    (200, b'data: {"choices": [{}]}\n\n', "an event that is no part"),
    (200, b'data: {"usage": {"prompt_tokens": "x"}}\n\n', "an event that is no part"),
])  # fmt: skip
def test_an_error_response_is_a_sentence(scripted_url: str, status: int, body: bytes, sentence: str) -> None:
    ScriptedHandler.responses = {"/v1/chat/completions": (status, body)}
    with pytest.raises(ChatFailed, match=sentence):
        list(RemoteBackend(scripted_url, "m", "").stream_answer(MESSAGES, {}, AnswerStats()))


def test_a_server_without_a_model(scripted_url: str) -> None:
    ScriptedHandler.responses = {"/v1/models": (200, b'{"data": []}')}
    with pytest.raises(ChatFailed, match="serves no model"):
        RemoteBackend(scripted_url, None, "")
    for body in (b"<html>", b"null", b"[1]", b'{"data": [{}]}', b'{"data": null}', b"[" * 100_000, b"\xff"):
        ScriptedHandler.responses = {"/v1/models": (200, body)}
        with pytest.raises(ChatFailed, match="no list of models at /v1/models"):
            RemoteBackend(scripted_url, None, "")


def test_a_connection_that_breaks_within_an_answer_is_a_sentence(
    scripted_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(*_: object) -> bytes:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    ScriptedHandler.responses = {"/v1/chat/completions": (200, b"")}
    backend = RemoteBackend(scripted_url, "m", "")
    monkeypatch.setattr(HTTPResponse, "read1", reset)
    with pytest.raises(ChatFailed, match="closed the connection: connection reset by peer"):
        list(backend.stream_answer(MESSAGES, {}, AnswerStats()))
