"""`chairlift fleet update`: sends the update, waits for it, and explains what the fleet reports."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from chairlift.cli.main import main
from chairlift.cli.settings.settings import SECRETS

STATUS = {"version": "v2", "is_updating": True}


class FakeFleet(BaseHTTPRequestHandler):
    """Responds from a list and keeps what it received."""

    received: list[tuple[str, str, str | None, Any]]
    responses: list[tuple[int, Any]]

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.received.append((self.command, self.path, self.headers.get("authorization"), body))
        status, fields = self.responses.pop(0)
        data = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET  # noqa: N815  # the base class calls it so

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def fake_fleet(*responses: tuple[int, Any]) -> Iterator[tuple[str, list[Any]]]:
    received: list[Any] = []
    handler = type("Handler", (FakeFleet,), {"received": received, "responses": list(responses)})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("chairlift.cli.commands.fleet_update.POLL_SECONDS", 0.01)


def test_an_update_is_sent_with_the_admin_key_and_its_end_is_awaited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHAIRLIFT_ADMIN_KEY", "k")
    with fake_fleet((202, STATUS), (200, STATUS), (200, {**STATUS, "is_updating": False})) as (url, received):
        assert main(["fleet", "update", "m", "--replica-option", "dtype=int8", "--url", url, "--wait"]) == 0
    first, *others = received
    assert first == ("POST", "/admin/fleet/update", "Bearer k", {"model": "m", "arguments": ["--dtype", "int8"]})
    assert others == [("GET", "/admin/fleet", "Bearer k", None)] * 2
    assert capsys.readouterr().err.splitlines() == [
        "the fleet replaces its replicas by those of version v2", "all replicas have version v2"
    ]  # fmt: skip


def test_without_wait_it_returns_at_once_and_names_only_what_changes(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_fleet((202, STATUS)) as (url, received):
        assert main(["fleet", "update", "--model", "m", "--url", url, "-q"]) == 0
    assert [request[3] for request in received] == [{"model": "m"}] and capsys.readouterr().err == ""


@pytest.mark.parametrize(("status", "fields", "sentence"), [
    (400, {"error": {"message": "arguments: bad"}}, "responds 400: arguments: bad"),
    (401, {}, "responds 401: the variable CHAIRLIFT_ADMIN_KEY must have the admin key with which"),
    (404, {}, "responds 404: the variable CHAIRLIFT_ADMIN_KEY must"), (500, b"<html>", "responds 500:"),
    (202, [], "is no fleet: its /admin/fleet"), (202, {}, "is no fleet: its /admin/fleet"),
    (200, b"<html>", "is no fleet: its /admin/fleet"), (202, b"[" * 100_000, "is no fleet: its /admin/fleet"),
])  # fmt: skip
def test_a_rejection_is_one_sentence(
    status: int, fields: Any, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_fleet((status, fields)) as (url, _):
        assert main(["fleet", "update", "m", "--url", url]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"chairlift: {url} {sentence}") and err.count("\n") == 1, err


@pytest.mark.parametrize(("words", "code", "sentence"), [
    ([], 2, "nothing to update: give a MODEL or --replica-option NAME=VALUE"),
    (["m", "--url", "nowhere"], 2, "--url must be the URL of a fleet, as in http://127.0.0.1:8000, got 'nowhere'"),
    (["m", "--url", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9 does not respond: "),
    (["--replica-option", "port=1"], 2, "--replica-option 'port=1': the fleet sets port itself"),
])  # fmt: skip
def test_invalid_input(words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "update", *words]) == code
    assert capsys.readouterr().err.startswith(f"chairlift: {sentence}")


@pytest.mark.parametrize(("last", "message"), [
    ({"version": "v1", "is_updating": False, "update_failure": "the update to version v2 was stopped: no such model"},
     "the update to version v2 was stopped: no such model"),
    ({"version": "v3", "is_updating": True, "update_failure": ""},
     "another update, to version v3, has taken the place of this one"),
])  # fmt: skip
def test_an_update_that_is_stopped_ends_the_wait_with_the_reason(
    last: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_fleet((202, STATUS), (200, STATUS), (200, last)) as (url, _):
        assert main(["fleet", "update", "m", "--url", url, "--wait"]) == 1
    assert message in capsys.readouterr().err


def test_an_update_that_cannot_go_on_now_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    stalled = {**STATUS, "update_failure": "the update to version v2 cannot go on now: no GPU is free"}
    with fake_fleet((202, STATUS), (200, stalled), (200, stalled), (200, {**STATUS, "is_updating": False})) as (url, _):
        assert main(["fleet", "update", "m", "--url", url, "--wait"]) == 0
    assert capsys.readouterr().err.count("no GPU is free") == 1
