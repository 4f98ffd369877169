"""EXAMPLES: one for each route with a model, which its schema and a real server accept."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from chairlift.protocol import router_and_fleet_openapi
from chairlift.protocol.openapi_page import page
from chairlift.protocol.request_examples import EXAMPLES
from chairlift.server import openapi
from support_router_process import direct_or_routed
from support_server import Server, real_server

NO_MODEL = ("/admin/", "/v1/responses/{id}/cancel", "/v1/batches")


@pytest.mark.parametrize("document", [openapi.document, router_and_fleet_openapi.document])
def test_every_body_has_an_example_that_its_schema_accepts(document: Callable[[list[str]], dict[str, Any]]) -> None:
    found = {}
    for path, methods in document(["first", "second"])["paths"].items():
        body = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        if body is None or path.startswith(NO_MODEL):
            continue
        assert Draft202012Validator(body["schema"]).is_valid(body["example"]), path
        assert body["example"]["model"] == "first"
        found[path] = body["example"]
    assert found.keys() == EXAMPLES.keys()
    assert "What is the capital of France?" in page(document([]))


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    with real_server("--dtype", "float32", "--tool-call-parser", "hermes") as running:
        yield running


@pytest.fixture(scope="module", params=["direct", "router"])
def server(request: pytest.FixtureRequest, replica: Server) -> Iterator[Server]:
    with direct_or_routed(request.param, replica) as server:
        yield server


@pytest.mark.share(1)
def test_a_server_accepts_every_example(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        paths = http.get("/openapi.json").raise_for_status().json()["paths"]
        for path in EXAMPLES:
            body = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
            response = http.post(path, json=body)
            assert response.status_code == 200, (path, response.text)
            assert "x-ignored-parameters" not in response.headers, path
