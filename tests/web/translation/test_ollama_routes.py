"""ollama_routes: each request gets its route, requests without a text only check the model, and models are listed."""

import json
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, ModelNotFound, Unavailable
from chairlift.protocol.ollama.model_descriptions import OLLAMA_VERSION
from chairlift.protocol.translation.base import Translator
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.send_response import send_object
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.translation.ollama_routes import OLLAMA_WORK_PATHS, OllamaModels, ollama_routes
from chairlift.web.translation.translated_route import TranslatedRoute
from support_translation import Sent, open_admission, ready_lifecycle, request

CARD = {"id": "m", "object": "model", "created": 7, "owned_by": "x", "max_model_len": 9}
HI = {"model": "m", "prompt": "Hi", "stream": False}
CHOICE = {"index": 0, "message": {"content": "Yes"}, "text": "Yes", "finish_reason": "stop", "logprobs": None}


class Inner:
    """Answers as all routes of the OpenAI API, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"] if scope["method"] == "POST" else b""
        self.requests.append((scope["method"], scope["path"], json.loads(body) if body else None))
        if scope["path"] == "/v1/models":
            await send_object(send, {"object": "list", "data": [CARD]})
        elif scope["path"] == "/v1/embeddings":
            await send_object(send, {"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 1}})
        else:
            await send_object(send, {"choices": [CHOICE], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})


def post(path: str, body: dict[str, Any], inner: Inner, *, method: str = "POST", is_strict: bool = False,
         lifecycle: Lifecycle | None = None, headers: dict[str, str] | None = None) -> Sent:  # fmt: skip
    config, state = HttpConfig(), lifecycle or ready_lifecycle()

    def resolve_model(name: str) -> str:
        if name in ("", "m", "m:latest", "gone"):
            return name if name == "gone" else "m"
        raise ModelNotFound(name, "m")

    def translated(translator: Translator) -> TranslatedRoute:
        return TranslatedRoute(inner, translator, config, state, open_admission(), is_strict)

    models = OllamaModels(inner, config, state, resolve_model, is_strict)
    routes = {(verb, path): app for verb, path, app in ollama_routes(translated, models, resolve_model)}
    return request(routes[method, path], json.dumps(body).encode(), method=method, path=path, headers=headers)


@pytest.mark.parametrize(("path", "body", "inner_path"), [
    ("/api/chat", {"messages": [{"role": "user", "content": "Hi"}]}, "/v1/chat/completions"),
    ("/api/generate", {}, "/v1/chat/completions"), ("/api/generate", {"raw": True}, "/v1/completions"),
    ("/api/embed", {"input": "a"}, "/v1/embeddings"), ("/api/embeddings", {}, "/v1/embeddings"),
])  # fmt: skip
def test_each_request_gets_its_route(path: str, body: dict[str, Any], inner_path: str) -> None:
    inner = Inner()
    assert post(path, {**HI, **body, "model": "m:latest"}, inner).status == 200
    [(method, found, sent)] = inner.requests
    assert (method, found, sent["model"]) == ("POST", inner_path, "m:latest")


@pytest.mark.parametrize("path", OLLAMA_WORK_PATHS)
def test_a_request_without_a_text_only_checks_the_model(path: str) -> None:
    inner, body = Inner(), {"model": "m", "input": "", "keep_alive": 3}
    for name in ("", None):
        answer = json.loads(post(path, {**body, "model": name}, inner).body)
        assert answer.get("model", "m") == "m" and inner.requests == []
    sent = post(path, body, inner)
    assert inner.requests == [] and "keep_alive" in sent.headers["x-ignored-parameters"]
    assert json.loads(sent.body).get("done_reason", "load") == "load"
    with pytest.raises(ModelNotFound, match=r"served are m$"):
        post(path, {**body, "model": "n"}, inner)
    with pytest.raises(InvalidRequest, match="has no effect"):
        post(path, body, inner, is_strict=True)
    with pytest.raises(InvalidRequest, match="x-request-timeout-ms"):
        post(path, body, inner, headers={"x-request-timeout-ms": "x"})
    with pytest.raises(Unavailable):
        post(path, body, inner, lifecycle=Lifecycle())


def test_models_are_those_of_the_service() -> None:
    inner = Inner()
    for path in ("/api/tags", "/api/ps"):
        assert json.loads(post(path, {}, inner, method="GET").body)["models"][0]["name"] == "m"
    shown = post("/api/show", {"model": "m:latest", "verbose": True}, inner)
    assert json.loads(shown.body)["model_info"] == {"general.context_length": 9}
    assert shown.headers["x-ignored-parameters"] == "verbose"
    assert set(inner.requests) == {("GET", "/v1/models", None)}
    for path, method in (("/api/tags", "GET"), ("/api/ps", "GET"), ("/api/show", "POST")):
        with pytest.raises(Unavailable):
            post(path, {"model": "m"}, inner, method=method, lifecycle=Lifecycle())


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ModelNotFound, match=r"the model 'n' is not served here; served are m$"):
        post("/api/show", {"name": "n"}, Inner())
    with pytest.raises(ModelNotFound, match=r"the model 'gone' is not served here; served are m$"):
        post("/api/show", {"name": "gone"}, Inner())


def test_the_version_is_that_of_the_api() -> None:
    assert json.loads(post("/api/version", {}, Inner(), method="GET").body) == {"version": OLLAMA_VERSION}
