"""HttpApp: routes, errors and their records, keys, CORS headers, and the early check of a full queue."""

import asyncio
from typing import Any

import httpx

from chairlift.core.errors import NotFound
from chairlift.core.load_report import ReplicaState
from chairlift.web.access_log import AccessRecord
from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.auth.api_keys import read_keys
from chairlift.web.auth.credentials import Credentials
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.bounded_http_protocol import Rejection
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.request_info import request_info
from chairlift.web.send_response import send_object
from chairlift.web.service.http_app import HttpApp
from chairlift.web.service.http_config import HttpConfig

LIMITS = AdmissionLimits()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await send_object(send, {"path": scope["path"], "route": request_info(scope).route_path})


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound(f"no {scope['path']}")


def make_app(
    records: list[AccessRecord], key: str = "", limits: AdmissionLimits = LIMITS, is_loopback: bool = False,
    **options: Any,
) -> HttpApp:  # fmt: skip
    lifecycle = Lifecycle()
    lifecycle.mark_started(lambda: ReplicaState.READY)
    keys = read_keys(None, {"CHAIRLIFT_API_KEY": key} if key else {})
    return HttpApp(
        HttpConfig(**options), Credentials(keys),
        [("GET", "/a/{id:path}", echo), ("POST", "/work", echo), ("GET", "/admin/live", echo)],
        not_found,
        lifecycle=lifecycle, admission=AdmissionController(limits), generation_paths=("/work",),
        on_response=records.append, host="127.0.0.1", is_loopback=is_loopback,
    )  # fmt: skip


def get(app: HttpApp, path: str, **headers: str) -> httpx.Response:
    async def scenario() -> httpx.Response:
        transport = httpx.ASGITransport(app.asgi)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.get(path, headers=headers)

    return asyncio.run(scenario())


def test_routes_errors_and_their_records() -> None:
    records: list[AccessRecord] = []
    app = make_app(records)
    assert get(app, "/a/b/c").json() == {"path": "/a/b/c", "route": "/a/{id}"}
    assert get(app, "/nothing").json()["error"]["message"] == "no /nothing"
    assert get(app, "/work").status_code == 405
    assert [(each.route, each.status) for each in records] == [("/a/{id}", 200), ("", 404), ("", 405)]


def test_every_path_but_the_open_ones_needs_the_key() -> None:
    app = make_app([], key="k")
    assert get(app, "/a/b").status_code == 401
    assert get(app, "/a/b", authorization="Bearer k").status_code == 200
    assert get(app, "/metrics").status_code == 401
    assert get(make_app([], key="k", public_metrics=True), "/metrics").status_code == 404


def test_live_data_needs_no_key_on_a_loopback_address_without_keys() -> None:
    for is_loopback, key, status in ((True, "", 200), (False, "", 404), (True, "k", 404)):
        assert get(make_app([], key, is_loopback=is_loopback), "/admin/live").status_code == status
    page = {"origin": "https://a.example"}
    app = make_app([], is_loopback=True, cors_origins=("https://a.example",))
    assert get(app, "/admin/live", **page).status_code == 403
    assert get(app, "/admin/live", host="rebound.example").status_code == 403


def test_cors_headers_are_sent_to_the_origins_of_the_setting_and_need_the_whole_application() -> None:
    app = make_app([], cors_origins=("https://a.example",))
    assert get(app, "/a/b", origin="https://a.example").headers["access-control-allow-origin"] == "https://a.example"
    assert app.early_check is None


def test_the_early_check_rejects_work_by_its_head_when_the_queue_is_full() -> None:
    app = make_app([], limits=AdmissionLimits(max_waiting_requests=1))
    assert app.early_check is not None
    assert app.early_check(b"/a/b", [], None) is None
    acquire = app.early_check(b"/work", [(b"content-type", b"application/json")], None)
    assert callable(acquire) and acquire() is not None
    rejected = app.early_check(b"/work", [(b"content-type", b"application/json")], None)
    assert isinstance(rejected, Rejection) and rejected.route == "/work"
