"""bad_requests: invalid requests, each with the status that the server must return.

A name starts with the number of the kind of fault; names with the same number are variants of it.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from soak.raw_client import build_request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FILES, BATCHES = "/v1/files", "/v1/batches"
MODEL = "chairlift:demo"

BODIES: Mapping[str, bytes] = {
    "1 empty": b"", "2 truncated": b"{", "3 array": b"[]", "3 null": b"null", "4 not UTF-8": b'{"model": "\xff"}',
    "5 BOMs": 2 * b"\xef\xbb\xbf", "6 half a pair": b'{"model": "\\ud800"}', "7 deep": b'{"model": ' + b"[" * 100_000,
    "8 NaN": b'{"temperature": NaN}', "8 1e999": b'{"temperature": 1e999}', "9 digits": b'{"n": ' + b"9" * 5000 + b"}",
}  # fmt: skip
"""Bodies that are not a JSON object; the status is 400."""

_USER = {"role": "user", "content": "hi"}
_TOOL = {"type": "function", "function": {"name": "f"}}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "22 model number": {"model": 7}, "23 none": {"messages": []}, "23 no list": {"messages": "hi"},
    "24 role": {"messages": [{"role": "king", "content": "a"}]},
    "24 content": {"messages": [{"role": "user", "content": 7}]},
    "25 image": {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://169.254.1.1/"}}]}]},
    "29 context": {"messages": [{"role": "user", "content": "lift " * 5000}]},
    "30 both": {"max_tokens": 2047}, "31 zero": {"max_tokens": 0}, "31 huge": {"max_tokens": 2**31},
    "31 text": {"max_tokens": "5"}, "32 zero": {"n": 0}, "32 billion": {"n": 10**9}, "34 top_p": {"top_p": -1},
    "34 top_k": {"top_k": -2}, "35 below": {"temperature": -0.1}, "35 above": {"temperature": 2.1},
    "36": {"presence_penalty": 2.1}, "37 alone": {"top_logprobs": 2}, "37 many": {"logprobs": True, "top_logprobs": 21},
    "38 many": {"logit_bias": {str(token): 1 for token in range(10_000)}}, "38 key": {"logit_bias": {"abc": 1}},
    "38 vocabulary": {"logit_bias": {"99999": 1}}, "39 nothing left": {"choice": ["a"], "allowed_token_ids": [5]},
    "40 too many": {"stop": ["a"] * 65}, "40 megabyte": {"stop": "x" * 10**6}, "41": {"stop_token_ids": [99_999]},
    "42": {"seed": 2**64}, "43": {"stream": "yes"}, "44 kind": {"response_format": {"type": "yaml"}},
    "44 schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "banana"}}}},
    "44 regex": {"regex": "(("}, "44 lookahead": {"regex": "a(?=b)"}, "45 brackets": {"regex": "(" * 30_000},
    "47 many": {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(1000)]},
    "47 twice": {"tools": [_TOOL, _TOOL]}, "47 choice": {"tools": [_TOOL], "tool_choice": {
        "type": "function", "function": {"name": "g"}}},
    "48 no call": {"messages": [_USER, {"role": "tool", "tool_call_id": "x", "content": "1"}]},
    "50 template": {"chat_template": "{{ x }}"}, "50 arguments": {"chat_template_kwargs": {"tokenize": False}},
    "51 megabyte": {"messages": [{"role": "user", "content": "e\u0301" * 300_000}]},
    "52 number": {"cache_salt": 5}, "52 long": {"cache_salt": "s" * 10**6}, "54": {"priority": 2**63},
}  # fmt: skip
"""Fields that make a chat request invalid; the status is 400."""


_FORM_TYPE = "multipart/form-data; boundary=x"
_FORM = (
    b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n--x--\r\n'
)
_BASE64_FORM = _FORM.replace(b"\r\n\r\n{}", b"\r\ncontent-transfer-encoding: base64\r\n\r\ne30=")
_BATCH = {"input_file_id": "file-0", "endpoint": CHAT, "completion_window": "24h"}


def _prompt(prompt: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt}).encode()


@lru_cache(maxsize=8)
def bad_requests(key: str) -> dict[str, tuple[bytes, int]]:
    """Return name -> (bytes of a request, expected status), for a client with this API key."""
    auth = {"authorization": f"Bearer {key}"}
    valid = {"model": MODEL, "messages": [_USER], "max_tokens": 4}
    body = json.dumps(valid).encode()
    result = {name: (build_request("POST", CHAT, data, **auth), 400) for name, data in BODIES.items()}
    for name, fields in FIELDS.items():
        result[name] = (build_request("POST", CHAT, json.dumps({**valid, **fields}).encode(), **auth), 400)
    return result | {
        "12 type": (build_request("POST", CHAT, body, content_type="text/plain", **auth), 415),
        "13 gzip": (build_request("POST", CHAT, b"\x1f\x8b" + bytes(100), content_encoding="gzip", **auth), 415),
        "14 too large": (build_request("POST", CHAT, **auth).replace(b"length: 0", b"length: 4000001"), 413),
        "16 head": (build_request("GET", "/v1/models", x_big="x" * 200_000, **auth), 431),
        "16 headers": (build_request("GET", "/v1/models", **{f"x_{i}": "y" for i in range(1000)}, **auth), 431),
        "18 slashes": (build_request("GET", "//v1/models", **auth), 404),
        "18 up": (build_request("GET", "/v1/%2e%2e/admin/state", **auth), 404),
        "19 method": (build_request("GET", CHAT, **auth), 405),
        "20 nowhere": (build_request("GET", "/nowhere", **auth), 404),
        "21 no key": (build_request("POST", CHAT, body), 401),
        "21 wrong key": (build_request("POST", CHAT, body, authorization="Bearer wrong"), 401),
        "22 unknown": (build_request("POST", CHAT, json.dumps({**valid, "model": "m"}).encode(), **auth), 404),
        "26 empty": (build_request("POST", COMPLETIONS, _prompt([]), **auth), 400),
        "65 no form": (build_request("POST", FILES, body, content_type="application/json", **auth), 415),
        "65 no boundary": (build_request("POST", FILES, body, content_type="multipart/form-data", **auth), 400),
        "65 cut": (build_request("POST", FILES, _FORM[:-9], content_type=_FORM_TYPE, **auth), 400),
        "65 purpose": (
            build_request("POST", FILES, _FORM.replace(b"batch", b"x"), content_type=_FORM_TYPE, **auth), 400
        ),
        "65 empty file": (
            build_request("POST", FILES, _FORM.replace(b"{}", b""), content_type=_FORM_TYPE, **auth), 400
        ),
        "65 lines": (build_request("POST", FILES, b"\n" * 100_000, content_type=_FORM_TYPE, **auth), 400),
        "65 base64": (build_request("POST", FILES, _BASE64_FORM, content_type=_FORM_TYPE, **auth), 400),
        "65 unknown file": (build_request("GET", f"{FILES}/..%2F..%2Fetc%2Fpasswd/content", **auth), 404),
        "66 unknown file": (build_request("POST", BATCHES, json.dumps(_BATCH).encode(), **auth), 404),
        "66 endpoint": (
            build_request("POST", BATCHES, json.dumps({**_BATCH, "endpoint": "/admin/drain"}).encode(), **auth), 400
        ),
        "66 unknown batch": (build_request("POST", f"{BATCHES}/batch_0/cancel", **auth), 404),
        "27 beyond": (build_request("POST", COMPLETIONS, _prompt([99_999]), **auth), 400),
        "53 id": (build_request("POST", CHAT, body, x_request_id="x" * 10_000, **auth), 200),
        "54 deadline": (build_request("POST", CHAT, body, x_request_timeout_ms="-1", **auth), 400),
        "59 both": (
            build_request("POST", CHAT, body, **auth)
            .replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n", 1), 400
        ),
        "61 upgrade": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        "62 origin": (build_request("GET", "/admin/state", origin="http://evil.example", **auth), 403),
        "64 admin": (build_request("GET", "/admin/state", **auth), 401),
    }  # fmt: skip
