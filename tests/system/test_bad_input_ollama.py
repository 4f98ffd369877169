"""Bad input at the routes of Ollama's API: the statuses of the HTTP contract, and errors that name the field.

The numbers are those of the cases in the contract.
"""

import json
from typing import Any

import httpx
import pytest

from support_bad_input import MEGABYTE

pytestmark = pytest.mark.usefixtures("good_request_still_works")

HI = [{"role": "user", "content": "hello"}]
FULL: dict[str, dict[str, Any]] = {
    "/api/chat": {"model": "fake", "messages": HI, "stream": False, "options": {"num_predict": 3, "seed": 1}},
    "/api/generate": {"model": "fake", "prompt": "hello", "stream": False, "options": {"num_predict": 3, "seed": 1}},
    "/api/embed": {"model": "fake", "input": "hello"}, "/api/embeddings": {"model": "fake", "prompt": "hello"},
    "/api/show": {"model": "fake"},
}  # fmt: skip
"""A good body of each route."""

JSON = {"content-type": "application/json"}


def rejection(response: httpx.Response, status: int) -> str:
    """Assert the status and the form of an error; returns its message."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"] and response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"} and isinstance(body["error"], str) and len(body["error"]) < 500, body
    message: str = body["error"]
    return message


BODIES: dict[str, bytes] = {
    "1 empty": b"", "2 truncated": b"{", "3 array": b"[]", "3 string": b'"x"', "3 null": b"null", "3 number": b"1",
    "4 not UTF-8": b'{"model": "\xff\xfe"}', "5 BOMs": 2 * b"\xef\xbb\xbf", "6 half a pair": b'{"model": "\\ud800"}',
    "7 deep": b'{"model": ' + b"[" * 100_000, "8 NaN": b'{"model": "fake", "options": {"temperature": NaN}}',
    "8 1e999": b'{"model": "fake", "options": {"temperature": 1e999}}', "22 number": b'{"model": 7}',
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", FULL)
def test_bodies(http: httpx.Client, path: str, body: bytes) -> None:
    rejection(http.post(path, content=body, headers=JSON), 400)


@pytest.mark.share(4)
@pytest.mark.parametrize("path", FULL)
def test_what_every_route_has(http: httpx.Client, path: str) -> None:
    good = FULL[path]
    assert http.post(path, json=good).status_code == 200
    twice = b'{"model": "nobody", ' + json.dumps(good).encode()[1:]
    assert http.post(path, content=twice).status_code == 200, "10: the last one counts, and 12: no type is JSON"
    rejection(http.post(path, json={**good, "model": "nobody"}), 404)
    rejection(http.post(path, content=json.dumps(good), headers={"content-type": "text/plain"}), 415)
    rejection(http.post(path, content=b"x", headers={**JSON, "content-encoding": "gzip"}), 415)
    rejection(http.post(path, content=b" " * 4_000_001, headers=JSON), 413)
    assert http.get(path).headers["allow"] == "POST" and rejection(http.get(path), 405)
    rejection(http.post(path, json=good, headers={"host": "evil.example"}), 403)
    rejection(http.post(path, json=good, headers={"origin": "https://evil.example"}), 403)
    response = http.post(path, json={**good, "a\r\nset-cookie: b": 1})
    assert response.status_code == 200 and "set-cookie" not in response.headers
    assert response.headers["x-ignored-parameters"].startswith("a??set-cookie")


FIELDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "23 no list": ("/api/chat", {"messages": "hi"}, "messages"),
    "24 role": ("/api/chat", {"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    "24 null": ("/api/chat", {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    "25 image": ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["http://169.254.1.1/"]}]},
                 "messages[0].images"),
    "25 of a prompt": ("/api/generate", {"images": ["file:///etc/passwd"]}, "images"),
    "26 embedding": ("/api/embed", {"input": ["a", ""]}, "input"),
    "27 ids": ("/api/embed", {"input": [1, 2]}, "input[0]"),
    "28": ("/api/embed", {"input": ["a"] * 10_000}, "input"),
    "29 chat": ("/api/chat", {"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    "29 prompt": ("/api/generate", {"prompt": "x" * 600}, "prompt"),
    "29 raw": ("/api/generate", {"prompt": "x" * 600, "raw": True}, "prompt"),
    "29 embedding": ("/api/embeddings", {"prompt": "x" * 600}, "prompt"),
    "30": ("/api/generate", {"options": {"num_predict": 508}}, "prompt"),
    "31 negative": ("/api/chat", {"options": {"num_predict": -3}}, "options.num_predict"),
    "31 huge": ("/api/chat", {"options": {"num_predict": 2**31}}, "options.num_predict"),
    "31 text": ("/api/chat", {"options": {"num_predict": "5"}}, "options.num_predict"),
    "34 top_p": ("/api/chat", {"options": {"top_p": 1.1}}, "options.top_p"),
    "34 top_k": ("/api/chat", {"options": {"top_k": -2}}, "options.top_k"),
    "35": ("/api/generate", {"options": {"temperature": 2.1}}, "options.temperature"),
    "36": ("/api/generate", {"options": {"presence_penalty": 2.1}}, "options.presence_penalty"),
    "37": ("/api/chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "37 alone": ("/api/chat", {"top_logprobs": 2}, "top_logprobs"),
    "40 many": ("/api/chat", {"options": {"stop": ["a"] * 65}}, "options.stop"),
    "40 together": ("/api/chat", {"options": {"stop": ["a" * 1000] * 17}}, "options.stop"),
    "42": ("/api/chat", {"options": {"seed": 2**64}}, "options.seed"),
    "43": ("/api/chat", {"stream": "yes"}, "stream"),
    "44": ("/api/chat", {"format": {"type": "banana"}}, "format"),
    "44 text": ("/api/chat", {"format": "yaml"}, "format"),
    "45": ("/api/chat", {"format": {"$ref": "http://169.254.1.1/"}}, "format"),
    "47 many": ("/api/chat", {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(1000)]},
                "tools"),
    "47 newline": ("/api/chat", {"tools": [{"function": {"name": "f\n"}}]}, "tools[0].function.name"),
    "47 no object": ("/api/chat", {"tools": [7]}, "tools[0]"),
    "48 no call": ("/api/chat", {"messages": [{"role": "tool", "content": "1"}]}, "messages[0]"),
    "48 text": ("/api/chat", {"messages": [{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": 5}}]}]}, "messages[0].tool_calls[0].function.arguments"),
    "50 template": ("/api/generate", {"template": "{% for i in range(10**9) %}{% endfor %}"}, "template"),
    "51": ("/api/generate", {"prompt": "x" * MEGABYTE}, "prompt"),
    "51 raw": ("/api/generate", {"prompt": "e\u0301" * 300_000, "raw": True}, "prompt"),
}  # fmt: skip


@pytest.mark.share(7)
@pytest.mark.parametrize(("path", "changes", "field"), FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("stream", [False, True])
def test_fields(http: httpx.Client, path: str, changes: dict[str, Any], field: str, stream: bool) -> None:
    """An error before the first byte has its own status, also where a stream was wanted."""
    message = rejection(http.post(path, json={**FULL[path], "stream": stream, **changes}), 400)
    assert message.startswith(field), message


def test_54_a_deadline_that_is_none(http: httpx.Client) -> None:
    for path in FULL.keys() - {"/api/show"}:
        message = rejection(http.post(path, json=FULL[path], headers={"x-request-timeout-ms": "0"}), 400)
        assert message.startswith("x-request-timeout-ms")
