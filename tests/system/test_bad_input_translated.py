"""Bad input on the routes of other APIs: each gets its status and its API's error; the next good request works.

The numbers are those of the cases in the HTTP contract.
"""

import json
from typing import Any

import httpx
import pytest

from chairlift.protocol.error_formats import has_openai_form
from support_bad_input import MEGABYTE, exchange
from support_server import Server

pytestmark = pytest.mark.usefixtures("good_request_still_works")

ASK = [{"role": "user", "content": "hello"}]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": "fake", "input": "hello", "max_output_tokens": 3},
    "/v1/messages": {"model": "fake", "messages": ASK, "max_tokens": 3},
    "/v1/messages/count_tokens": {"model": "fake", "messages": ASK},
}
"""A good body of each route."""

paths = pytest.mark.parametrize("path", GOOD)
messages_paths = pytest.mark.parametrize("path", [path for path in GOOD if "messages" in path])


def error_of(path: str, response: httpx.Response, status: int) -> str:
    """Assert the status and the form of an error; return its message."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"] and response.headers["content-type"] == "application/json"
    body = response.json()
    if has_openai_form(path):
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    else:
        assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        assert body["request_id"] == response.headers["x-request-id"] == response.headers["request-id"]
    message: str = body["error"]["message"]
    assert len(message) < 500
    return message


BODIES: dict[str, bytes] = {
    "1 empty": b"", "2 truncated": b"{", "3 array": b"[]", "3 string": b'"x"', "3 null": b"null", "3 number": b"1",
    "4 not UTF-8": b'{"model": "\xff\xfe"}', "5 BOMs": 2 * b"\xef\xbb\xbf", "6 half a pair": b'{"model": "\\ud800"}',
    "7 deep": b'{"model": ' + b"[" * 100_000, "8 NaN": b'{"model": "fake", "temperature": NaN}',
    "8 1e999": b'{"model": "fake", "temperature": 1e999}', "9 digits": b'{"max_tokens": ' + b"9" * 5000 + b"}",
}  # fmt: skip


@pytest.mark.share(3)
@paths
def test_bodies_that_are_no_json_object(http: httpx.Client, path: str) -> None:
    for name, body in BODIES.items():
        response = http.post(path, content=body, headers={"content-type": "application/json"})
        assert error_of(path, response, 400), name


@paths
def test_the_good_body_and_fields_without_effect(http: httpx.Client, path: str) -> None:
    body = GOOD[path] | {"frobnicate": 1, "service_tier": "auto", "a\r\nset-cookie: b": 1}
    response = http.post(path, json=body)
    assert response.status_code == 200 and "set-cookie" not in response.headers, response.text
    assert {"frobnicate", "service_tier"} <= set(response.headers["x-ignored-parameters"].split(", "))


@pytest.mark.share(1)
@paths
def test_types_sizes_and_methods(http: httpx.Client, server: Server, path: str) -> None:
    body = json.dumps(GOOD[path]).encode()
    error_of(path, http.post(path, content=body, headers={"content-type": "text/plain"}), 415)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    error_of(path, http.post(path, content=b"\x1f\x8b" + bytes(1000), headers=headers), 415)
    error_of(path, http.get(path), 405)
    assert http.get(path).headers["allow"] == "POST"
    head = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % path.encode()
    assert exchange(server, head + b"content-length: 4000001\r\n\r\n{").startswith(b"HTTP/1.1 413")
    slow = exchange(server, head + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n")
    assert slow.startswith(b"HTTP/1.1 408") and b"connection: close" in slow


@paths
def test_22_models(http: httpx.Client, path: str) -> None:
    for model, status in ((1, 400), ("nobody", 404)):
        assert "model" in error_of(path, http.post(path, json=GOOD[path] | {"model": model}), status)
    others = {name: value for name, value in GOOD[path].items() if name != "model"}
    for body in (others, others | {"model": None}, others | {"model": ""}):
        assert http.post(path, json=body).status_code == 200


def content(*blocks: Any, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(blocks)}]


def image(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": url}}


CONVERSATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "23 missing": ({"messages": ...}, "messages"),
    "23 empty": ({"messages": []}, "messages"),
    "23 no list": ({"messages": "hi"}, "messages"),
    "24 role": ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    "24 null": ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    "24 block": ({"messages": content({"type": "smell"})}, "messages[0].content[0].type"),
    "25 address": ({"messages": content(image("http://169.254.1.1/"))}, "messages[0].content[0]"),
    "25 file": ({"messages": content(image("file:///etc/passwd"))}, "messages[0].content[0]"),
    "47 many": ({"tools": [{"name": f"f{i}", "input_schema": {}} for i in range(1000)]}, "tools"),
    "47 twice": ({"tools": [{"name": "f", "input_schema": {}}] * 2}, "tools[1].name"),
    "47 newline": ({"tools": [{"name": "f\n", "input_schema": {}}]}, "tools[0].name"),
    "47 schema": ({"tools": [{"name": "f", "input_schema": 7}]}, "tools[0].input_schema"),
    "47 no object": ({"tools": [{"name": "f", "input_schema": {"type": ["string"]}}]}, "tools[0].input_schema"),
    "48 no call": ({"messages": content({"type": "tool_result", "tool_use_id": "x"})},
                   "messages[0].content[0].tool_use_id"),
    "48 no object": ({"messages": [*content({"type": "tool_use", "id": "x", "name": "f", "input": 5},
                                            role="assistant"), *ASK]}, "messages[0].content[0].input"),
    "50 arguments": ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
    "system": ({"system": [image("http://169.254.1.1/")]}, "system[0]"),
}  # fmt: skip


@pytest.mark.share(4)
@messages_paths
@pytest.mark.parametrize(("changes", "param"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_conversations(http: httpx.Client, path: str, changes: dict[str, Any], param: str) -> None:
    body = {name: value for name, value in {**GOOD[path], **changes}.items() if value is not ...}
    message = error_of(path, http.post(path, json=body), 400)
    assert message.startswith(param) and "169.254" not in message and "passwd" not in message


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "29": ({"messages": [{"role": "user", "content": "x" * 600}]}, "prompt is too long: "),
    "30": ({"max_tokens": 510}, "input length and `max_tokens` exceed context limit: "),
    "31 missing": ({"max_tokens": ...}, "max_tokens"), "31 zero": ({"max_tokens": 0}, "max_tokens"),
    "31 huge": ({"max_tokens": 2**31}, "max_tokens"), "31 text": ({"max_tokens": "5"}, "max_tokens"),
    "31 fraction": ({"max_tokens": 1.5}, "max_tokens"), "34 top_p": ({"top_p": 1.1}, "top_p"),
    "34 top_k": ({"top_k": -2}, "top_k"), "35 above": ({"temperature": 2.1}, "temperature"),
    "40 many": ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
    "40 empty": ({"stop_sequences": ["a", ""]}, "stop_sequences"),
    "40 megabyte": ({"stop_sequences": ["x" * MEGABYTE]}, "stop_sequences"),
    "40 number": ({"stop_sequences": [3]}, "stop_sequences"), "42": ({"seed": 2**64}, "seed"),
    "43": ({"stream": "yes"}, "stream"), "52": ({"cache_salt": 5}, "cache_salt"),
    "54 priority": ({"priority": -1}, "priority"), "54 timeout": ({"timeout": -1}, "timeout"),
}  # fmt: skip


@pytest.mark.share(7)
@pytest.mark.parametrize(("changes", "param"), FIELDS.values(), ids=FIELDS)
def test_fields_of_a_message(http: httpx.Client, changes: dict[str, Any], param: str) -> None:
    body = {name: value for name, value in {**GOOD["/v1/messages"], **changes}.items() if value is not ...}
    for more in ({}, {"stream": True}) if "stream" not in changes else ({},):
        assert error_of("/v1/messages", http.post("/v1/messages", json={**body, **more}), 400).startswith(param)


def test_53_a_large_user_id(http: httpx.Client) -> None:
    body = GOOD["/v1/messages"] | {"metadata": {"user_id": "u\r\n" * 300_000}}
    assert http.post("/v1/messages", json=body).status_code == 200
