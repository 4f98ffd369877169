"""openapi.py: the document is valid OpenAPI 3.1 and has every route, status and response."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import orjson
import pytest
from jsonschema import Draft202012Validator

from chairlift import __version__
from chairlift.core.errors import InvalidRequest, NotFound
from chairlift.protocol.router_and_fleet_openapi import document as router_document
from chairlift.server.app import _batches, _routes
from chairlift.server.config import ServerConfig
from chairlift.server.live.live_batch import live_batch
from chairlift.server.openapi import DESCRIPTION, document
from chairlift.server.replica import Replica
from chairlift.web.auth.api_keys import read_keys
from chairlift.web.error_responses import _TABLE, error_body
from chairlift.web.service.http_app import OPEN
from support_server import ADMIN_KEY, HELLO, MODEL, open_server, run
from support_services import fake_service
from support_shares import for_each

DOCUMENT = document()
OPERATIONS = [
    (path, method, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


def schemas(value: Any) -> Iterator[Any]:
    """Yield every schema of the document."""
    if isinstance(value, dict):
        if isinstance(value.get("schema"), dict):
            yield value["schema"]
        for each in value.values():
            yield from schemas(each)
    elif isinstance(value, list):
        for each in value:
            yield from schemas(each)


# -- the document ------------------------------------------------------------------------------------------------------


def test_the_document_is_json_and_names_its_version() -> None:
    assert json.loads(orjson.dumps(DOCUMENT)) == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"] == {"title": "Chairlift", "version": __version__, "description": DESCRIPTION}
    assert set(DOCUMENT) <= {"openapi", "info", "servers", "paths", "components", "security", "tags"}


def test_every_operation_is_one_of_openapi() -> None:
    assert OPERATIONS
    for path, method, operation in OPERATIONS:
        assert path.startswith("/") and method in METHODS
        assert set(operation) <= {
            "summary", "description", "operationId", "parameters", "requestBody", "responses", "security",
        }  # fmt: skip
        assert operation["summary"].strip()
        assert ("requestBody" in operation) <= (method == "post")
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d", status)
            assert set(response) <= {"description", "content", "headers", "links"} and response["description"]
            assert "x-request-id" in response["headers"] and ("links" in response) <= status.startswith("2")
            for kind, media in response.get("content", {}).items():
                assert re.fullmatch(r"[a-z]+/[a-z-]+", kind) and set(media) == {"schema"}
        assert sum(status.startswith("2") for status in operation["responses"]) == 1


def test_every_place_in_a_path_is_a_parameter() -> None:
    for path, _, operation in OPERATIONS:
        parameters = [each for each in operation.get("parameters", []) if each["in"] == "path"]
        assert re.findall(r"{(\w+)}", path) == [each["name"] for each in parameters]
        assert all(each["required"] is True and each["schema"] for each in parameters)


def test_every_link_leads_to_an_operation() -> None:
    names = {operation["operationId"]: operation for _, _, operation in OPERATIONS if "operationId" in operation}
    links = [link for _, _, operation in OPERATIONS for each in operation["responses"].values()
             for link in each.get("links", {}).values()]  # fmt: skip
    assert {link["operationId"] for link in links} == set(names)
    for link in links:
        parameters = names[link["operationId"]].get("parameters", [])
        present = {each["name"] for each in parameters if each["required"]}
        assert set(link.get("parameters", {})) == present


def test_only_the_administration_cannot_do_without_a_key_and_live_data_can_on_a_loopback_address() -> None:
    admin = {path: operation for path, _, operation in OPERATIONS if path.startswith("/admin/")}
    guarded_paths = {path for path, _, operation in OPERATIONS if operation.get("security") == [{"key": []}]}
    assert guarded_paths == admin.keys() - {"/admin/live"}
    assert admin["/admin/live"]["security"] == [{"key": []}, {}]
    assert "loopback address" in admin["/admin/live"]["description"]


def test_a_server_names_its_models() -> None:
    operation = document(("a", "b"))["paths"]
    for path, kind in (("/v1/chat/completions", "post"), ("/v1/completions", "post"), ("/tokenize", "post")):
        schema = operation[path][kind]["requestBody"]["content"]["application/json"]["schema"]
        for name, fits in (("a", True), ("b", True), ("c", False)):
            assert Draft202012Validator(schema["properties"]["model"]).is_valid(name) is fits
    assert operation["/v1/models/{id}"]["get"]["parameters"][0]["schema"]["enum"] == ["a", "b"]


@pytest.mark.full
def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    result = [*schemas(DOCUMENT["paths"]), *DOCUMENT["components"]["schemas"].values()]
    assert len(result) > len(OPERATIONS)
    for schema in result:
        Draft202012Validator.check_schema(schema)
    for reference in re.findall(r'"\$ref": "([^"]*)"', json.dumps(DOCUMENT)):
        value: Any = DOCUMENT
        assert reference.startswith("#/"), "every reference stays inside the document"
        for name in reference[2:].split("/"):
            value = value[name]
    schemes = DOCUMENT["components"]["securitySchemes"]
    assert all(set(each) <= set(schemes) for each in DOCUMENT["security"])


def test_every_route_of_the_server_is_in_it_and_no_other() -> None:
    async def drain() -> None: ...

    replica = Replica(ServerConfig(served_names=("m",)))
    own_routes = _routes(replica, drain, live_batch(replica))
    routes = {
        (re.sub(r":\w+}", "}", path), method.lower())
        for method, path, _ in (*own_routes, *_batches(replica, own_routes).routes())
    }  # fmt: skip
    assert {(path, method) for path, method, _ in OPERATIONS} == routes


STATUSES = {
    "post /v1/chat/completions": "200 400 401 403 404 405 408 409 413 415 429 500 503",
    "post /v1/completions": "200 400 401 403 404 405 408 409 413 415 429 500 503",
    "post /v1/embeddings": "200 400 401 403 404 405 408 413 415 429 500 503",
    "post /v1/score": "200 400 401 403 404 405 408 413 415 429 500 503",
    "post /v1/rerank": "200 400 401 403 404 405 408 413 415 429 500 503",
    "get /v1/models": "200 401 403 405 503",
    "get /v1/models/{id}": "200 401 403 404 405 503",
    "post /v1/responses": "200 400 401 403 404 405 408 409 413 415 429 500 503",
    "post /v1/responses/compact": "200 400 401 403 404 405 408 409 413 415 429 500 503",
    "post /v1/responses/input_tokens": "200 400 401 403 404 405 408 413 415 429 500 503",
    "get /v1/responses/{id}": "200 400 401 403 404 405 503",
    "delete /v1/responses/{id}": "200 401 403 404 405 503",
    "get /v1/responses/{id}/input_items": "200 400 401 403 404 405 503",
    "post /v1/responses/{id}/cancel": "200 400 401 403 404 405 503",
    "post /v1/messages": "200 400 401 403 404 405 408 409 413 415 429 500 503",
    "post /v1/messages/count_tokens": "200 400 401 403 404 405 408 413 415 429 503",
    "post /v1/files": "200 400 401 403 404 405 408 413 415 503",
    "get /v1/files": "200 400 401 403 405 503",
    "get /v1/files/{id}": "200 401 403 404 405 503",
    "delete /v1/files/{id}": "200 401 403 404 405 503",
    "get /v1/files/{id}/content": "200 401 403 404 405 503",
    "post /v1/batches": "200 400 401 403 404 405 408 413 415 429 503",
    "get /v1/batches": "200 400 401 403 405 503",
    "get /v1/batches/{id}": "200 401 403 404 405 503",
    "post /v1/batches/{id}/cancel": "200 400 401 403 404 405 503",
    "post /api/chat": "200 400 401 403 404 405 408 409 413 415 429 500 503",
    "post /api/generate": "200 400 401 403 404 405 408 409 413 415 429 500 503",
    "post /api/embed": "200 400 401 403 404 405 408 409 413 415 429 500 503",
    "post /api/embeddings": "200 400 401 403 404 405 408 409 413 415 429 500 503",
    "post /api/show": "200 400 401 403 404 405 408 413 415 503",
    "get /api/tags": "200 401 403 405 503",
    "get /api/ps": "200 401 403 405 503",
    "get /api/version": "200 401 403 405",
    "post /tokenize": "200 400 401 403 404 405 408 413 415 503",
    "post /detokenize": "200 400 401 403 404 405 408 413 415 503",
    "get /tokenizer_info": "200 401 403 405 503",
    "get /livez": "200 405",
    "get /readyz": "200 405 503",
    "get /health": "200 405 503",
    "get /ping": "200 405 503",
    "get /version": "200 401 403 405",
    "get /metrics": "200 401 403 405",
    "get /load": "200 401 403 405",
    "get /docs": "200 401 403 405",
    "get /openapi.json": "200 401 403 405",
    "post /admin/drain": "202 401 403 404 405",
    "get /admin/live": "200 401 403 404 405 429",
    "get /admin/debug": "200 401 403 404 405",
    "get /admin/state": "200 401 403 404 405 503",
    "get /admin/requests/{id}": "200 401 403 404 405 503",
}


def test_no_operation_names_a_status_that_it_cannot_have() -> None:
    assert {f"{method} {path}": " ".join(operation["responses"]) for path, method, operation in OPERATIONS} == STATUSES


def test_every_status_of_an_error_is_that_of_an_operation_or_of_a_connection() -> None:
    both = (*DOCUMENT["paths"].values(), *router_document()["paths"].values())
    operations = [operation for methods in both for operation in methods.values()]
    operation_statuses = {int(status) for operation in operations for status in operation["responses"]}
    connection_statuses = {int(status) for status in re.findall(r"\b[45]\d\d\b", DESCRIPTION)}
    assert {reply.status for reply in _TABLE.values()} <= operation_statuses | connection_statuses


def test_what_needs_no_key_says_so() -> None:
    open_ones = {path for path, _, operation in OPERATIONS if operation.get("security") == []}
    assert open_ones == OPEN and not any(
        "401" in operation["responses"] for path, _, operation in OPERATIONS if path in OPEN
    )


def test_errors_are_of_the_schema() -> None:
    schema = DOCUMENT["components"]["schemas"]["Error"]
    for error in (InvalidRequest("n is bad", param="n"), NotFound("there is no such route"), KeyError("x")):
        body = json.loads(error_body(error, "r"))
        jsonschema.validate(body, schema, Draft202012Validator)
    for bad in ({}, {"error": "x"}, {"error": {"message": "x"}}):
        assert not Draft202012Validator(schema).is_valid(bad)


# -- responses ---------------------------------------------------------------------------------------------------------

REQUESTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("/v1/chat/completions", "post", HELLO),
    ("/v1/chat/completions", "post", {**HELLO, "n": 2, "logprobs": True, "top_logprobs": 3, "return_token_ids": True}),
    ("/v1/completions", "post", {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 3, "unknown": 1}),
    ("/v1/embeddings", "post", {"model": MODEL, "input": ["a", "b"], "unknown": 1}),
    ("/v1/embeddings", "post", {"model": MODEL, "input": [1, 2], "encoding_format": "base64", "dimensions": 2}),
    ("/v1/score", "post", {"model": MODEL, "text_1": "a", "text_2": ["b", "c"]}),
    ("/v1/rerank", "post", {"model": MODEL, "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    ("/v1/completions", "post", {"model": MODEL, "prompt": "ab", "max_tokens": 2, "echo": True, "logprobs": 2,
                                 "return_token_ids": True}),
    ("/v1/models", "get", None), ("/v1/models/{id}", "get", None),
    ("/tokenize", "post", {"prompt": "a", "return_token_strs": True, "unknown": 1}),
    ("/detokenize", "post", {"tokens": [65]}), ("/tokenizer_info", "get", None),
    ("/livez", "get", None), ("/readyz", "get", None), ("/health", "get", None), ("/load", "get", None),
    ("/openapi.json", "get", None), ("/admin/state", "get", None), ("/admin/requests/{id}", "get", None),
    ("/admin/drain", "post", None),
]  # fmt: skip


@for_each(("path", "method", "body"), REQUESTS)
def test_answers_are_what_is_documented(path: str, method: str, body: dict[str, Any] | None) -> None:
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}

    async def scenario() -> Any:
        ring = read_keys(None, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})
        async with open_server(fake_service(), keys=ring) as server:
            await server.http.post("/v1/chat/completions", json=HELLO, headers={"x-request-id": "one"})
            url = path.replace("models/{id}", f"models/{MODEL}").replace("requests/{id}", "requests/one")
            return await server.http.request(method, url, json=body, headers=admin)

    reply = run(scenario())
    operation = DOCUMENT["paths"][path][method]["responses"][str(reply.status_code)]
    assert reply.status_code < 300, reply.text
    schema = operation["content"]["application/json"]["schema"]
    jsonschema.validate(reply.json(), schema, Draft202012Validator)
    for invalid in ({}, {"object": "x"}, []):
        assert path == "/openapi.json" or not Draft202012Validator(schema).is_valid(invalid), (
            "the schema accepts anything"
        )
    present = {name for name in reply.headers if name.startswith("x-")}
    assert present <= set(operation["headers"]) and "x-request-id" in present
    assert ("x-ignored-parameters" in present) is (body is not None and "unknown" in body)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("name", ["x-chairlift-router", "x-chairlift-progress"])
def test_a_header_that_is_ignored_unless_it_is_1_may_have_any_value(path: str, name: str) -> None:
    (schema,) = [each["schema"] for each in DOCUMENT["paths"][path]["post"]["parameters"] if each["name"] == name]
    for value in ("", "0", "1", "yes"):
        jsonschema.validate(value, schema)
