"""router_and_fleet_openapi.py: the document has every route of a router, and each response is what it says."""

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest
from jsonschema import Draft202012Validator

from chairlift.protocol.router_and_fleet_openapi import document, fleet_operations
from chairlift.router.app import router_app
from chairlift.router.config import RouterConfig
from chairlift.router.router import Router
from chairlift.web.auth.api_keys import KeyRing, read_keys
from chairlift.web.auth.credentials import Credentials
from support_router import CHAT, COMPLETIONS, Connection, ReceivedRequest, running_router, scripted
from support_server import ADMIN_KEY, run

FORWARDED = {"/tokenize", "/detokenize", "/tokenizer_info"}
DOCUMENT = document(("m",))
ADMIN_HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}
PAGE_PATHS = {"/", "/ui/{path}"}
"""Paths of the web page, which are files."""

STATUSES = {
    "post /v1/chat/completions": "200 400 401 403 404 405 408 409 413 415 429 500 502 503 504",
    "post /v1/completions": "200 400 401 403 404 405 408 409 413 415 429 500 502 503 504",
    "post /v1/embeddings": "200 400 401 403 404 405 408 413 415 429 500 502 503 504",
    "post /v1/score": "200 400 401 403 404 405 408 413 415 429 500 502 503 504",
    "post /v1/rerank": "200 400 401 403 404 405 408 413 415 429 500 502 503 504",
    "post /v1/responses": "200 400 401 403 404 405 408 409 413 415 429 500 502 503 504",
    "post /v1/responses/compact": "200 400 401 403 404 405 408 409 413 415 429 500 502 503 504",
    "post /v1/responses/input_tokens": "200 400 401 403 404 405 408 413 415 429 500 502 503 504",
    "get /v1/responses/{id}": "200 400 401 403 404 405 503",
    "delete /v1/responses/{id}": "200 401 403 404 405 503",
    "get /v1/responses/{id}/input_items": "200 400 401 403 404 405 503",
    "post /v1/responses/{id}/cancel": "200 400 401 403 404 405 503",
    "post /v1/messages": "200 400 401 403 404 405 408 409 413 415 429 500 502 503 504",
    "post /v1/messages/count_tokens": "200 400 401 403 404 405 408 413 415 429 500 502 503 504",
    "post /v1/files": "200 400 401 403 404 405 408 413 415 503",
    "get /v1/files": "200 400 401 403 405 503",
    "get /v1/files/{id}": "200 401 403 404 405 503",
    "delete /v1/files/{id}": "200 401 403 404 405 503",
    "get /v1/files/{id}/content": "200 401 403 404 405 503",
    "post /v1/batches": "200 400 401 403 404 405 408 413 415 429 503",
    "get /v1/batches": "200 400 401 403 405 503",
    "get /v1/batches/{id}": "200 401 403 404 405 503",
    "post /v1/batches/{id}/cancel": "200 400 401 403 404 405 503",
    "post /api/chat": "200 400 401 403 404 405 408 409 413 415 429 500 502 503 504",
    "post /api/generate": "200 400 401 403 404 405 408 409 413 415 429 500 502 503 504",
    "post /api/embed": "200 400 401 403 404 405 408 409 413 415 429 500 502 503 504",
    "post /api/embeddings": "200 400 401 403 404 405 408 409 413 415 429 500 502 503 504",
    "post /api/show": "200 400 401 403 404 405 408 413 415 503",
    "get /api/tags": "200 401 403 405 503",
    "get /api/ps": "200 401 403 405 503",
    "get /api/version": "200 401 403 405",
    "post /tokenize": "200 400 401 403 404 405 408 413 415 429 500 502 503 504",
    "post /detokenize": "200 400 401 403 404 405 408 413 415 429 500 502 503 504",
    "get /tokenizer_info": "200 401 403 405 429 500 502 503 504",
    "get /v1/models": "200 401 403 405",
    "get /v1/models/{id}": "200 401 403 404 405",
    "get /livez": "200 405",
    "get /readyz": "200 405 503",
    "get /health": "200 405 503",
    "get /ping": "200 405 503",
    "get /version": "200 401 403 405",
    "get /metrics": "200 401 403 405",
    "get /docs": "200 401 403 405",
    "get /openapi.json": "200 401 403 405",
    "get /load": "200 401 403 405",
    "post /admin/drain": "202 401 403 404 405",
    "get /admin/live": "200 401 403 404 405 429",
    "get /admin/replicas": "200 401 403 404 405",
    "get /admin/debug": "200 401 403 404 405",
    "get /admin/replicas/debug": "200 400 401 403 404 405 502",
    "get /admin/replicas/live": "200 400 401 403 404 405 429 502",
    "post /admin/replicas/drain": "200 400 401 403 404 405 408 413 415 503",
    "post /admin/replicas/undrain": "200 400 401 403 404 405 408 413 415 503",
    "post /admin/replicas/weight": "200 400 401 403 404 405 408 413 415 503",
}


def test_the_document_has_these_operations_and_statuses() -> None:
    found = {
        f"{method} {path}": " ".join(operation["responses"])
        for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
    }  # fmt: skip
    assert found == STATUSES


def test_of_the_administration_only_live_data_can_do_without_a_key() -> None:
    needs_no_key = {
        path for path, methods in DOCUMENT["paths"].items() for operation in methods.values()
        if path.startswith("/admin/") and {} in operation["security"]
    }  # fmt: skip
    assert needs_no_key == {"/admin/live", "/admin/replicas/live"}


def test_every_route_of_the_router_is_in_it_and_no_other() -> None:
    async def routes() -> set[tuple[str, str]]:
        async def drain() -> None: ...

        router = Router(RouterConfig())
        try:
            app: Any = router_app(router, Credentials(KeyRing()), drain)
            inner = app.asgi._app._app.__closure__[0].cell_contents
            return {
                (re.sub(r":\w+}", "}", each.path), method.lower()) for each in inner.routes for method in each.methods
            }
        finally:
            await router.close()

    documented = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert {each for each in run(routes()) if each[1] != "head" and each[0] not in PAGE_PATHS} == {
        each for each in documented if each[0] not in FORWARDED
    }


def test_models_are_those_of_the_router() -> None:
    for path in (CHAT, COMPLETIONS):
        body = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["properties"]["model"]["anyOf"][0]["enum"] == ["m", ""]
    assert DOCUMENT["paths"]["/v1/models/{id}"]["get"]["parameters"][0]["schema"]["enum"] == ["m"]


def admin_keys() -> KeyRing:
    return read_keys(None, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})


async def nothing(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({})


@pytest.mark.share(5)
@pytest.mark.parametrize(("method", "path", "body"), [
    ("get", "/v1/models", None), ("get", "/v1/models/{id}", None), ("get", "/livez", None), ("get", "/readyz", None),
    ("get", "/health", None), ("get", "/version", None), ("get", "/load", None), ("get", "/openapi.json", None),
    ("get", "/admin/replicas", None), ("post", "/admin/replicas/drain", {}), ("post", "/admin/replicas/undrain", {}),
    ("post", "/admin/replicas/weight", {"weight": 2}), ("post", "/admin/drain", None),
])  # fmt: skip
def test_answers_are_what_is_documented(method: str, path: str, body: dict[str, Any] | None) -> None:
    async def scenario() -> httpx.Response:
        async with scripted(nothing) as replica, running_router([replica.url], keys=admin_keys()) as router:
            content = None if body is None else json.dumps({"replica_id": replica.url, **body}).encode()
            async with httpx.AsyncClient(base_url=router.url, headers=ADMIN_HEADERS) as http:
                return await http.request(method, path.replace("{id}", "m"), content=content)

    response = run(scenario())
    operation = DOCUMENT["paths"][path][method]["responses"][str(response.status_code)]
    assert response.status_code < 300, response.text
    schema = operation["content"]["application/json"]["schema"]
    jsonschema.validate(response.json(), schema, Draft202012Validator)
    for invalid in ({}, {"object": "x"}, []):
        assert path == "/openapi.json" or not Draft202012Validator(schema).is_valid(invalid)


@pytest.mark.parametrize("weight", [-1, 1001, "2", True])
def test_a_weight_out_of_range_is_the_clients_error(weight: Any) -> None:
    async def scenario() -> httpx.Response:
        async with scripted(nothing) as replica, running_router([replica.url], keys=admin_keys()) as router:
            body = {"replica_id": replica.url, "weight": weight}
            async with httpx.AsyncClient(base_url=router.url, headers=ADMIN_HEADERS) as http:
                return await http.post("/admin/replicas/weight", json=body)

    response = run(scenario())
    assert response.status_code == 400 and response.json()["error"]["param"] == "weight", response.text


def test_the_document_of_a_fleet_is_that_of_a_router_with_two_more_paths() -> None:
    router, fleet = document(["m"])["paths"], document(["m"], fleet_operations())["paths"]
    assert fleet.keys() - router.keys() == {"/admin/fleet", "/admin/fleet/update"}
    body = fleet["/admin/fleet/update"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = Draft202012Validator(body)
    assert all(validator.is_valid(each) for each in ({}, {"model": "m"}, {"model": None, "arguments": ["--seed=1"]}))
    assert not any(validator.is_valid(each) for each in ({"modell": "m"}, {"arguments": "--seed=1"}, {"model": 1}))
