"""Requests without a model, and with the names that a model has beside the served one: a server's and a router's."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support_router_process import direct_or_routed
from support_server import Server, real_server

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": HI},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/score": {"text_1": "Hi", "text_2": "Ho"},
    "/v1/rerank": {"query": "Hi", "documents": ["Ho"]},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
    "/api/chat": {"messages": HI, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "Hi", "stream": False, "options": {"num_predict": 2}},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {},
}
NAMES = ("toy", "other", "toy:latest", "chairlift:demo", "chairlift:demo:latest")


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    names = ("--served-model-name", "toy", "--served-model-name", "other")
    with real_server("--num-blocks", "256", "--max-running-requests", "4", *names) as running:
        yield running


@pytest.fixture(scope="module", params=["direct", "router"])
def server(request: pytest.FixtureRequest, replica: Server) -> Iterator[Server]:
    with direct_or_routed(request.param, replica) as running:
        yield running


@pytest.mark.parametrize("path", BODIES)
def test_without_a_model_it_is_the_only_one(server: Server, path: str) -> None:
    for model in ({}, {"model": None}, {"model": ""}):
        response = httpx.post(server.url + path, json={**BODIES[path], **model}, timeout=60)
        assert response.status_code == 200, (model, response.text)
        assert response.json().get("model", "toy") == "toy"


@pytest.mark.parametrize("path", BODIES)
def test_a_model_has_the_name_that_it_was_started_with(server: Server, path: str) -> None:
    for name in NAMES:
        response = httpx.post(server.url + path, json={**BODIES[path], "model": name}, timeout=60)
        assert response.status_code == 200, (name, response.text)
        assert response.json().get("model", name) == name, "a response repeats the name in its request"
    response = httpx.post(server.url + path, json={**BODIES[path], "model": "unknown"}, timeout=60)
    assert response.status_code == 404 and "toy" in response.text and "other" in response.text


def test_no_list_shows_the_other_names(server: Server) -> None:
    assert {each["id"] for each in httpx.get(server.url + "/v1/models").json()["data"]} == {"toy", "other"}
    assert len(httpx.get(server.url + "/api/tags").json()["models"]) == 2
    for name in NAMES:
        assert httpx.get(f"{server.url}/v1/models/{name}").json()["id"] == (name if name == "other" else "toy")
    assert httpx.get(server.url + "/v1/models/").status_code == 404
