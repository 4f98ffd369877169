"""DocsRoutes: the document is read again for each response, because a router's models change."""

import json
from typing import Any

from chairlift.core.version import __version__
from chairlift.protocol.openapi import make_document, make_operation
from chairlift.web.body import App
from chairlift.web.service.docs_routes import DocsRoutes
from support_server import run


def respond(handle: App) -> tuple[int, str, bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a document needs no body")

    run(handle({"type": "http", "headers": []}, receive, send))
    kind = dict(sent[0]["headers"])[b"content-type"].decode()
    return sent[0]["status"], kind, b"".join(message["body"] for message in sent[1:])


def test_the_document_is_that_of_now() -> None:
    paths = ["/a"]
    routes = DocsRoutes(lambda: make_document([(path, "get", make_operation("Do it")) for path in paths], ""))
    for _ in range(2):
        status, kind, body = respond(routes.schema)
        assert (status, kind) == (200, "application/json") and list(json.loads(body)["paths"]) == paths
        status, kind, body = respond(routes.page)
        assert (status, kind) == (200, "text/html; charset=utf-8")
        assert all(f"GET {path}".encode() in body for path in paths)
        paths.append("/b")


def test_the_version_is_chairlifts() -> None:
    status, _, body = respond(DocsRoutes(dict).version)
    assert status == 200 and json.loads(body) == {"version": __version__}
