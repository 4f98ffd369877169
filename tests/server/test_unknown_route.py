"""unknown_route.py: a 404 names the path and the route that was probably meant, in bounded printable text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.server.unknown_route import unknown_route
from chairlift.web.error_responses import MAX_PATH_CHARS
from support_server import open_server, run
from support_services import fake_service
from support_shares import for_each

ROUTES = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/messages", "/tokenize", "/health", "/metrics"}
)
CHAT_ROUTE, COMPLETIONS_ROUTE = "/v1/chat/completions", "/v1/completions"


@for_each(
    ("path", "hint"),
    [
        ("/v1/v1/chat/completions", f"use {CHAT_ROUTE}: the client's base URL must end with a single /v1"),
        ("/v1/v1/messages", "use /v1/messages: the client's base URL must end without /v1"),
        ("/v1/v1/v1/models", "use /v1/models: the client's base URL must end with a single /v1"),
        ("/chat/completions", f"use {CHAT_ROUTE}: the client's base URL must end with /v1"),
        ("/completions", f"use {COMPLETIONS_ROUTE}: the client's base URL must end with /v1"),
        ("/models", "use /v1/models: the client's base URL must end with /v1"),
        ("/v1/chat/completions/", f"use {CHAT_ROUTE}"),
        ("//v1//chat/completions", f"use {CHAT_ROUTE}"),
        ("/health/", "use /health"),
        ("/openai/deployments/gpt/chat/completions", f"use {CHAT_ROUTE}"),
        ("/api/v1/completions", f"use {COMPLETIONS_ROUTE}"),
        ("/v1/banana", "/docs lists the routes"),
        ("/", "/docs lists the routes"),
    ],
)
def test_the_near_route_is_named(path: str, hint: str) -> None:
    assert unknown_route(path, ROUTES).message == f"there is no route {path}; {hint}"


@pytest.mark.parametrize(
    ("path", "api", "route"),
    [
        ("/completion", "llama.cpp's API", COMPLETIONS_ROUTE),
    ],
)  # fmt: skip
def test_the_route_of_another_api_is_known(path: str, api: str, route: str) -> None:
    message = unknown_route(path, ROUTES).message
    assert message == f"there is no route {path}, which is of {api}; use {route} of the OpenAI API"


@for_each("path", [
    "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/sha256:00",
])  # fmt: skip
def test_ollamas_routes_that_manage_models_say_why_they_are_not_there(path: str) -> None:
    assert unknown_route(path, ROUTES).message == (
        f"there is no route {path}: this server has the one model that it was started with, and cannot fetch, make, "
        "copy or delete any"
    )
    assert unknown_route("/api/pulled", ROUTES).message.endswith("; /docs lists the routes")


@given(st.text(max_size=3000) | st.text("/v1a", max_size=3000))
def test_any_path_is_shown_in_bounded_printable_text(path: str) -> None:
    message = unknown_route("/" + path, ROUTES).message
    assert message.isascii() and message.isprintable() and len(message) < MAX_PATH_CHARS + 200


def test_an_admin_route_without_an_admin_key_is_like_a_path_without_a_route() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server:
            for path in (
                "/admin/state",
                "/admin/drain",
                "/admin/nowhere",
                "/admin/%0a",
                "/admin/" + "x" * 500,
                "/nowhere",
            ):
                error = (await server.http.get(path)).json()["error"]
                shown = unknown_route(path.replace("%0a", "\n"), ()).message
                assert (error["message"], error["code"]) == (shown, "not_found"), path
                assert shown.startswith("there is no route /") and shown.endswith("; /docs lists the routes")

    run(scenario())


def test_the_response_is_a_json_error() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server:
            response = await server.http.post("/v1/v1/chat/completions", json={})
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["type"]) == (404, "not_found", "not_found_error")
            assert error["message"].startswith("there is no route /v1/v1/chat/completions; use /v1/chat/completions")
            response = await server.http.get("/%0d%0aset-cookie:%20a/%1b[31m/" + "x" * 5000)
            assert response.status_code == 404 and len(response.content) < 400
            assert "there is no route /??set-cookie:?a/?[31m/xxx" in response.json()["error"]["message"]
            for path, route in (("/generate", "/v1/completions"), ("/completion", "/v1/completions")):
                assert f"use {route} " in (await server.http.post(path, json={})).json()["error"]["message"]

    run(scenario())
