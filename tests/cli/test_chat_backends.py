"""Who answers in a chat: a model of this process and a server say the same, and both say why they cannot."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from chairlift.cli.chat_backends import AnswerStats, ChatFailed, LocalBackend, RemoteBackend
from chairlift.core.errors import ConfigError, InvalidRequest, NonFiniteLogits
from support_server import Server, fake_server
from support_services import FAKE, fake_service

ASK: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
OPTIONS = {"max_tokens": 5, "seed": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server() as running:
        yield running


def test_both_give_the_same_answer_and_count_it(server: Server) -> None:
    service = fake_service()
    told = []
    for talker in (
        LocalBackend(service),
        RemoteBackend(server.url, None, ""),
        RemoteBackend(server.url + "/v1/", "fake", "k"),
    ):
        counted = AnswerStats()
        text = "".join(talker.answer(ASK, OPTIONS, counted))
        told.append((text, counted.prompt_tokens, counted.output_tokens, counted.reason))
        assert counted.first is not None and 0 <= counted.first <= counted.seconds
    service.client.close()
    assert told == [told[0]] * 3 and told[0][1:] == (13, 5, "length") and len(told[0][0]) == 5


def test_they_have_names(server: Server) -> None:
    assert RemoteBackend(server.url, None, "").name == f"fake at {server.url}"
    service = fake_service()
    assert LocalBackend(service).name == "fake"
    service.client.close()


def test_what_cannot_be_is_an_invalid_request(server: Server) -> None:
    service = fake_service()
    for talker in (LocalBackend(service), RemoteBackend(server.url, None, "")):
        with pytest.raises(InvalidRequest, match="temperature"):
            list(talker.answer(ASK, {"temperature": 9}, AnswerStats()))
        with pytest.raises(InvalidRequest, match="512"):
            list(talker.answer([{"role": "user", "content": "x" * 1000}], {}, AnswerStats()))
    service.client.close()


def test_an_answer_that_fails() -> None:
    service = fake_service(replace(FAKE, nan=ord("~")))
    with pytest.raises(NonFiniteLogits):
        list(LocalBackend(service).answer([{"role": "user", "content": "~"}], OPTIONS, AnswerStats()))
    service.client.close()


def test_leaving_an_answer_early_ends_it() -> None:
    service = fake_service(replace(FAKE, seconds_per_step=0.01))
    answer = LocalBackend(service).answer(ASK, {"max_tokens": 400, "seed": 1}, AnswerStats())
    next(answer)
    answer.close()  # type: ignore[attr-defined]
    assert service.client.load().running_requests == 0
    service.client.close()


def test_addresses_that_are_none() -> None:
    for url in ("localhost:8000", "ftp://a", "http://", ""):
        with pytest.raises(ConfigError):
            RemoteBackend(url, "m", "")
    with pytest.raises(ChatFailed, match="does not answer"):
        RemoteBackend("http://127.0.0.1:9", None, "")


class Strange(BaseHTTPRequestHandler):
    """Answers what its path says."""

    answers: dict[str, tuple[int, bytes]] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer()

    def _answer(self) -> None:
        status, body = self.answers[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def strange() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Strange)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("status", "body", "sentence"), [
    (500, b"<html>oops</html>", "oops"),
    (401, b'{"error": {"message": "a key is needed"}}', "a key is needed"),
    (200, b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', "in the middle"),
    (200, b'event: error\ndata: {"error": {"message": "it broke"}}\n\n', "it broke"),
])  # fmt: skip
def test_servers_that_do_not_answer_well(strange: str, status: int, body: bytes, sentence: str) -> None:
    Strange.answers = {"/v1/chat/completions": (status, body)}
    with pytest.raises(ChatFailed, match=sentence):
        list(RemoteBackend(strange, "m", "").answer(ASK, {}, AnswerStats()))


def test_a_server_without_a_model(strange: str) -> None:
    Strange.answers = {"/v1/models": (200, b'{"data": []}')}
    with pytest.raises(ChatFailed, match="serves no model"):
        RemoteBackend(strange, None, "")
