"""The cases of bad input that the server is held to: each gets its status, and the next good request its old answer.

The numbers are those of the contract. A server in a process of its own, over a fake engine, is asked as any client
would.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from chairlift.web.auth import key_line
from support_server import CHAT, COMPLETIONS, HELLO, Server, fake_server

ASK: dict[str, Any] = {"model": "fake", "prompt": "hello", "max_tokens": 3, "seed": 1}
ADMIN, KEY = "the-admin-key", "the-key-of-alice"
MEGABYTE = 10**6


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = {"max_body_bytes": 4_000_000, "body_timeout": 1.0, "head": {"seconds": 2.0}, "idle_timeout": 2}
    with fake_server(server=limits) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text("\n".join([key_line(KEY, "alice"), key_line(ADMIN, "ops", admin=True)]), encoding="utf-8")
    with fake_server(keys=str(file)) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def before(http: httpx.Client) -> dict[str, Any]:
    return good(http)


@pytest.fixture(autouse=True)
def as_before(http: httpx.Client, before: dict[str, Any]) -> Iterator[None]:
    yield
    assert good(http) == before


def good(http: httpx.Client) -> dict[str, Any]:
    response = http.post(CHAT, json=HELLO, headers={"x-request-id": "good"})
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    del result["created"]
    result["usage"].pop("prompt_tokens_details")  # the second time the prompt is cached
    return result


def refused(response: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """Check a refusal; returns what it says."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"] and response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and isinstance(error["message"], str) and error["type"]
    if param is not None:
        assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    said: str = error["message"]
    return said


# -- bodies (1-10) -----------------------------------------------------------------------------------------------------

BODIES: dict[str, bytes] = {
    "1 empty": b"",
    "2 truncated": b"{",
    "2 cut off": json.dumps(HELLO).encode()[:-3],
    "3 array": b"[]",
    "3 string": b'"x"',
    "3 null": b"null",
    "3 number": b"1",
    "4 not UTF-8": b'{"model": "\xff\xfe"}',
    "5 BOM": b"\xef\xbb\xbf" + json.dumps(HELLO).encode(),
    "6 half a pair": b'{"model": "fake", "prompt": "\\ud800"}',
    "7 deep": b'{"model": ' + b"[" * 100_000,
    "8 NaN": b'{"model": "fake", "prompt": "a", "temperature": NaN}',
    "8 Infinity": b'{"model": "fake", "prompt": "a", "temperature": Infinity}',
    "8 1e999": b'{"model": "fake", "prompt": "a", "temperature": 1e999}',
    "9 digits": b'{"model": "fake", "prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_json_object(http: httpx.Client, path: str, body: bytes) -> None:
    refused(http.post(path, content=body, headers={"content-type": "application/json"}), 400)


def test_10_the_last_of_duplicate_keys_wins(http: httpx.Client) -> None:
    body = b'{"model": "nobody", "model": "fake", "prompt": "hello", "max_tokens": 9, "max_tokens": 3}'
    response = http.post(COMPLETIONS, content=body)
    assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 3


# -- fields ------------------------------------------------------------------------------------------------------------


def test_11_fields_without_effect_are_named(http: httpx.Client) -> None:
    odd = {"store": True, "metadata": {}, "prediction": {"type": "content", "content": ""}, "frobnicate": 1}
    response = http.post(CHAT, json={**HELLO, **odd})
    assert response.status_code == 200
    assert response.headers["x-ignored-parameters"] == "store, metadata, prediction, frobnicate"
    nasty = http.post(CHAT, json={**HELLO, "a\r\nset-cookie: b": 1, **{f"x{i}": 1 for i in range(1000)}})
    assert nasty.status_code == 200 and "set-cookie" not in nasty.headers
    assert len(nasty.headers["x-ignored-parameters"]) <= 1024


CHAT_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "22 missing model": ({"model": ...}, "model"),
    "22 null model": ({"model": None}, "model"),
    "22 number": ({"model": 1}, "model"),
    "23 no messages": ({"messages": ...}, "messages"),
    "23 empty": ({"messages": []}, "messages"),
    "23 null": ({"messages": None}, "messages"),
    "23 no list": ({"messages": "hi"}, "messages"),
    "24 role": ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    "24 null content": ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    "24 number": ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    "24 part": ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0]"),
    "25 address": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.1.1/"}}]}]},
        "messages[0].content[0]",
    ),
    "25 file": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]},
        "messages[0].content[0]",
    ),
    "31 zero": ({"max_tokens": 0}, "max_tokens"),
    "31 negative": ({"max_tokens": -1}, "max_tokens"),
    "31 huge": ({"max_tokens": 2**31}, "max_tokens"),
    "31 text": ({"max_tokens": "5"}, "max_tokens"),
    "31 fraction": ({"max_tokens": 1.5}, "max_tokens"),
    "31 newer name": ({"max_completion_tokens": 0}, "max_completion_tokens"),
    "32 zero": ({"n": 0}, "n"),
    "32 negative": ({"n": -1}, "n"),
    "32 many": ({"n": 129}, "n"),
    "32 billion": ({"n": 10**9}, "n"),
    "34 top_p 0": ({"top_p": 0}, "top_p"),
    "34 top_p -1": ({"top_p": -1}, "top_p"),
    "34 top_p 1.1": ({"top_p": 1.1}, "top_p"),
    "34 top_k": ({"top_k": -2}, "top_k"),
    "34 min_p": ({"min_p": 2}, "min_p"),
    "35 below": ({"temperature": -0.1}, "temperature"),
    "35 above": ({"temperature": 2.1}, "temperature"),
    "36 presence": ({"presence_penalty": 2.1}, "presence_penalty"),
    "36 frequency": ({"frequency_penalty": -2.1}, "frequency_penalty"),
    "37 no logprobs": ({"top_logprobs": 2}, "top_logprobs"),
    "37 21": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "37 number": ({"logprobs": 3}, "logprobs"),
    "38 many": ({"logit_bias": {str(i): 1 for i in range(10_000)}}, "logit_bias"),
    "38 key": ({"logit_bias": {"abc": 1}}, "logit_bias"),
    "38 vocabulary": ({"logit_bias": {"128": 1}}, "logit_bias"),
    "38 value": ({"logit_bias": {"5": 101}}, "logit_bias"),
    "40 five": ({"stop": list("abcde")}, "stop"),
    "40 empty": ({"stop": ""}, "stop"),
    "40 empty in list": ({"stop": ["a", ""]}, "stop"),
    "40 megabyte": ({"stop": "x" * MEGABYTE}, "stop"),
    "40 number": ({"stop": 3}, "stop"),
    "41": ({"stop_token_ids": [128]}, "stop_token_ids"),
    "42": ({"seed": 2**64}, "seed"),
    "42 below": ({"seed": -(2**63) - 1}, "seed"),
    "43 text": ({"stream": "yes"}, "stream"),
    "44 unknown": ({"response_format": {"type": "yaml"}}, "response_format.type"),
    "47 many": ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(1000)]}, "tools"),
    "47 twice": ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools[1].function.name"),
    "47 newline": ({"tools": [{"type": "function", "function": {"name": "f\n"}}]}, "tools[0].function.name"),
    "47 choice": (
        {"tools": [{"type": "function", "function": {"name": "f"}}],
         "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
    ),
    "48 no call": ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "1"}]}, "messages[0].tool_call_id"),
    "48 no JSON": (
        {"messages": [{"role": "assistant", "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    "50 template": ({"chat_template": "{% for i in range(10**9) %}{% endfor %}"}, "chat_template"),
    "50 arguments": ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
    "52 number": ({"cache_salt": 5}, "cache_salt"),
    "52 long": ({"cache_salt": "s" * 3 * MEGABYTE}, "cache_salt"),
    "54 priority": ({"priority": -1}, "priority"),
    "54 huge": ({"priority": 2**63}, "priority"),
    "54 timeout": ({"timeout": -1}, "timeout"),
    "54 timeout huge": ({"timeout": 2**63}, "timeout"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "param"), CHAT_FIELDS.values(), ids=CHAT_FIELDS)
def test_fields_of_a_chat(http: httpx.Client, changes: dict[str, Any], param: str) -> None:
    asked = {name: value for name, value in {**HELLO, **changes}.items() if value is not ...}
    said = refused(http.post(CHAT, json=asked), 400, param)
    assert len(said) < 500 and "169.254" not in said


COMPLETION_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "26 empty text": ({"prompt": ""}, "prompt"),
    "26 empty list": ({"prompt": []}, "prompt"),
    "26 empty texts": ({"prompt": [""]}, "prompt"),
    "26 empty ids": ({"prompt": [[]]}, "prompt"),
    "27 negative": ({"prompt": [-1]}, "prompt"),
    "27 vocabulary": ({"prompt": [128]}, "prompt"),
    "27 huge": ({"prompt": [2**63]}, "prompt"),
    "27 fraction": ({"prompt": [1.5]}, "prompt"),
    "27 true": ({"prompt": [True]}, "prompt"),
    "27 mixed": ({"prompt": ["a", 1]}, "prompt"),
    "28": ({"prompt": ["a"] * 10_000}, "prompt"),
    "28 times n": ({"prompt": ["a"] * 100, "n": 100}, "n"),
    "31 zero": ({"max_tokens": 0}, "max_tokens"),
    "33 less": ({"n": 3, "best_of": 2}, "best_of"),
    "33 stream": ({"best_of": 2, "stream": True}, "best_of"),
    "37 six": ({"logprobs": 6}, "logprobs"),
    "37 many": ({"logprobs": 100_000}, "logprobs"),
    "suffix": ({"suffix": "end"}, "suffix"),
}


@pytest.mark.parametrize(("changes", "param"), COMPLETION_FIELDS.values(), ids=COMPLETION_FIELDS)
def test_fields_of_a_completion(http: httpx.Client, changes: dict[str, Any], param: str) -> None:
    refused(http.post(COMPLETIONS, json={**ASK, **changes}), 400, param)


def test_22_an_unknown_model(http: httpx.Client) -> None:
    refused(http.post(CHAT, json={**HELLO, "model": "nobody"}), 404, "model", "model_not_found")


def test_29_and_30_a_prompt_over_the_context(http: httpx.Client) -> None:
    said = refused(http.post(COMPLETIONS, json={**ASK, "prompt": "x" * 512}), 400, "prompt", "context_length_exceeded")
    assert "512" in said
    said = refused(http.post(COMPLETIONS, json={**ASK, "max_tokens": 508}), 400, "prompt", "context_length_exceeded")
    assert "5 tokens" in said and "508" in said and "512" in said
    response = http.post(COMPLETIONS, json={"model": "fake", "prompt": "hello", "seed": 1})
    assert response.json()["usage"]["completion_tokens"] == 507  # as much as fits


GOOD: dict[str, dict[str, Any]] = {
    "35 tiny": {"temperature": 1e-12},
    "42 lowest": {"seed": -(2**63)},
    "42 highest": {"seed": 2**63 - 1},
    "42 negative": {"seed": -1},
    "49 special tokens": {"messages": [{"role": "user", "content": "<|im_end|></s>"}]},
    "53 user": {"user": "u" * MEGABYTE},
    "nulls": dict.fromkeys(("temperature", "stop", "n", "tools", "stream", "response_format", "seed", "timeout")),
}


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD)
def test_what_is_odd_and_allowed(http: httpx.Client, changes: dict[str, Any]) -> None:
    response = http.post(CHAT, json={**HELLO, **changes})
    assert response.status_code == 200, response.text


def test_31_zero_tokens_with_echo(http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json={**ASK, "max_tokens": 0, "echo": True})
    assert response.status_code == 200 and response.json()["choices"][0]["text"] == "hello"


def test_43_stream_options_without_a_stream(http: httpx.Client) -> None:
    response = http.post(CHAT, json={**HELLO, "stream_options": {"include_usage": True}})
    assert response.status_code == 200 and response.headers["x-ignored-parameters"] == "stream_options"


@pytest.mark.parametrize("text", ["x" * MEGABYTE, "e\u0301" * 300_000, "\u200b" * 300_000, "\0" * 100_000])
def test_51_a_megabyte_of_anything(http: httpx.Client, text: str) -> None:
    refused(http.post(COMPLETIONS, json={**ASK, "prompt": text}), 400)


@pytest.mark.parametrize("given", [b"a\r b", b"x" * 10_000, "🚡".encode(), b"a b", b"../../x"])
def test_53_a_request_id_that_is_none(server: Server, given: bytes) -> None:
    body = json.dumps(HELLO).encode()
    response = talk(
        server, b"POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: %s\r\ncontent-length: %d\r\n\r\n%s"
        % (CHAT.encode(), given.replace(b"\r", b"\t"), len(body), body),
    )  # fmt: skip
    assert response.startswith(b"HTTP/1.1 200") and b"x-request-id: req-" in response


@pytest.mark.parametrize("given", ["-1", "0", "x", "9223372036854775808", "1.5", ""])
def test_54_a_deadline_that_is_none(http: httpx.Client, given: str) -> None:
    refused(http.post(CHAT, json=HELLO, headers={"x-request-timeout-ms": given}), 400, "x-request-timeout-ms")


def test_63_metrics_have_no_labels_of_clients(http: httpx.Client) -> None:
    def send(number: int) -> None:
        http.post(CHAT, json={**HELLO, "model": f"m{number}"})
        http.request(f"VERB{number % 20}", f"/nowhere/{number}")

    send(0)  # the series of an unknown model and of an unknown method appear
    num_lines = len(http.get("/metrics").text.splitlines())
    for number in range(1, 300):
        send(number)
    assert len(http.get("/metrics").text.splitlines()) <= num_lines + 4


# -- HTTP (12-20, 56-62) -----------------------------------------------------------------------------------------------


def test_12_the_content_type(http: httpx.Client) -> None:
    body = json.dumps(HELLO).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/xml"):
        refused(http.post(CHAT, content=body, headers={"content-type": kind}), 415)
    assert http.post(CHAT, content=body).status_code == 200
    assert http.post(CHAT, content=body, headers={"content-type": "Application/JSON; charset=utf-8"}).status_code == 200


def test_13_a_compressed_body(http: httpx.Client) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    refused(http.post(CHAT, content=b"\x1f\x8b" + bytes(1000), headers=headers), 415)


def test_14_a_body_over_the_limit(server: Server, http: httpx.Client) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % CHAT.encode()
    response = talk(server, head + b"content-length: 4000001\r\n\r\n{")
    assert response.startswith(b"HTTP/1.1 413") and b"connection: close" in response
    assert talk(server, head + b"content-length: %s\r\n\r\n{" % (b"9" * 30)).startswith(
        (b"HTTP/1.1 413", b"HTTP/1.1 400")
    )
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    response = talk(server, head + b"transfer-encoding: chunked\r\n\r\n" + piece * 80)
    assert response.startswith(b"HTTP/1.1 413")


def test_15_a_body_that_does_not_come(server: Server) -> None:
    response = talk(
        server, b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n" % CHAT.encode()
    )
    assert response.startswith(b"HTTP/1.1 408") and b"connection: close" in response


def test_16_a_head_without_end(server: Server) -> None:
    assert talk(server, b"GET /livez HTTP/1.1\r\nx: " + b"y" * 6_000_000).startswith(b"HTTP/1.1 431")
    many = b"".join(b"x%d: y\r\n" % number for number in range(10_000))
    assert talk(server, b"GET /livez HTTP/1.1\r\n" + many + b"\r\n").startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("path", [
    b"//v1/models", b"/v1/../admin/state", b"/v1/%2e%2e/admin/state", b"/v1/models/", b"/livez/", b"/LIVEZ",
    b"/v1/models%00", b"/admin/state", b"/%61dmin/state", b"/", b"/v1", b"/v1/models/fake/../../admin",
])  # fmt: skip
def test_18_and_20_paths_that_are_none(server: Server, path: bytes) -> None:
    response = talk(server, b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path)
    assert response.startswith(b"HTTP/1.1 404") and b'"code":' in response


@pytest.mark.parametrize(("verb", "path"), [
    ("GET", CHAT), ("TRACE", CHAT), ("PUT", CHAT), ("DELETE", "/v1/models"), ("POST", "/livez"), ("FROBNICATE", CHAT),
])  # fmt: skip
def test_19_other_verbs(server: Server, verb: str, path: str) -> None:
    response = talk(server, f"{verb} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    assert response.startswith(b"HTTP/1.1 405") and b"\r\nallow: " in response


def test_56_a_thousand_requests_in_one_go(server: Server) -> None:
    names = [b"r%d" % number for number in range(1000)]
    asked = b"".join(b"GET /livez HTTP/1.1\r\nhost: x\r\nx-request-id: %s\r\n\r\n" % name for name in names)
    response = talk(
        server, asked + b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: last\r\n\r\n"
    )
    result = [line.split(b": ")[1] for line in response.split(b"\r\n") if line.startswith(b"x-request-id: ")]
    assert result == [*names, b"last"]


def test_56_a_connection_goes_on_after_a_bad_request(server: Server) -> None:
    body = json.dumps(HELLO).encode()
    bad = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n{" % CHAT.encode()
    fine = b"POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (
        CHAT.encode(),
        len(body),
    )
    response = talk(server, bad + fine + body)
    assert response.startswith(b"HTTP/1.1 400") and b"HTTP/1.1 200" in response


def test_59_bodies_of_two_lengths(server: Server) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: x\r\n" % CHAT.encode()
    both = (
        head + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    response = talk(server, both)
    assert (
        response.startswith(b"HTTP/1.1 400") and response.count(b"HTTP/1.1 ") - response.count(b"HTTP/1.1 request") == 1
    )
    response = talk(server, head + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n")
    assert (
        response.startswith(b"HTTP/1.1 400") and response.count(b"HTTP/1.1 ") - response.count(b"HTTP/1.1 request") == 1
    )
    body = json.dumps(HELLO).encode()
    response = talk(
        server, head + b"expect: 100-continue\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    )
    assert response.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


def test_60_a_thousand_idle_connections(server: Server, http: httpx.Client) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000)]
    try:
        assert http.post(CHAT, json=HELLO).status_code == 200
        for each in idle:
            each.settimeout(30)
            assert each.recv(1) == b""  # closed by the server
    finally:
        for each in idle:
            each.close()


@pytest.mark.parametrize("sent", [
    b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
])  # fmt: skip
def test_61_other_protocols(server: Server, sent: bytes) -> None:
    response = talk(server, sent)
    assert response == b"" or (response.startswith(b"HTTP/1.1 400") and b'"error"' in response)


def test_62_pages_of_others(http: httpx.Client) -> None:
    asked = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    response = http.options(CHAT, headers=asked)
    assert response.status_code == 405 and "access-control-allow-origin" not in response.headers
    response = http.post(CHAT, json=HELLO, headers={"origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in response.headers


# -- keys (17, 21, 55, 62, 64) -----------------------------------------------------------------------------------------

OPEN_PATHS = ("/livez", "/readyz", "/health")
GUARDED_PATHS = ("/v1/models", "/v1/models/fake", "/metrics", "/load", "/docs", "/openapi.json", "/nowhere", "/", CHAT)
JWT = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9."


@pytest.mark.parametrize("path", GUARDED_PATHS)
def test_21_and_55_no_key_and_wrong_keys(guarded: Server, path: str) -> None:
    wrong: list[list[tuple[str, str]]] = [
        [], [("authorization", "Bearer wrong")], [("authorization", f"Basic {KEY}")], [("authorization", KEY)],
        [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")], [("authorization", "Bearer")],
        [("authorization", f"Bearer {JWT}")], [("authorization", "Bearer " + "x" * 20_000)], [("x-api-key", KEY)],
        [("host", "x/?"), ("authorization", "Bearer x")], [("host", "a/v1/models?")],
    ]  # fmt: skip
    for headers in wrong:
        response = httpx.get(f"{guarded.url}{path}?api_key={KEY}&key={KEY}", headers=headers)
        refused(response, 401, code="invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"


def test_21_the_right_key(guarded: Server) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    assert httpx.post(guarded.url + CHAT, json=HELLO, headers=headers).status_code == 200
    assert httpx.get(guarded.url + "/metrics", headers={"authorization": f"bearer  {KEY}"}).status_code == 200
    for path in OPEN_PATHS:
        assert httpx.get(guarded.url + path).status_code == 200


def test_17_an_absolute_address_does_not_get_round_the_key(guarded: Server) -> None:
    for target in (b"http://x/v1/models", b"http://x/livez/../v1/models", b"http://livez/v1/models"):
        response = talk(guarded, b"GET %s HTTP/1.1\r\nhost: livez\r\nconnection: close\r\n\r\n" % target)
        assert response.startswith((b"HTTP/1.1 401", b"HTTP/1.1 400"))


def test_64_the_administration_has_its_own_key(guarded: Server) -> None:
    url = guarded.url + "/admin/state"
    refused(httpx.get(url), 401)
    refused(httpx.get(url, headers={"authorization": f"Bearer {KEY}"}), 401)
    admin = {"authorization": f"Bearer {ADMIN}"}
    response = httpx.get(url, headers=admin)
    assert response.status_code == 200 and response.json()["integrity_errors"] == []
    refused(httpx.get(url, headers={**admin, "origin": "https://elsewhere.example"}), 403)
    refused(httpx.post(guarded.url + "/admin/frobnicate", headers=admin), 404)


def talk(server: Server, sent: bytes, seconds: float = 30.0) -> bytes:
    """Send bytes and return all that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as peer:
        with suppress(OSError):  # it may have answered and closed before all was read
            peer.sendall(sent)
        received = b""
        while True:
            try:
                piece = peer.recv(65_536)
            except ConnectionError:
                return received
            if not piece:
                return received
            received += piece
