"""Bad values of fields: each gets its status; the next good request works as before.

The numbers are those of the cases in the HTTP contract.
"""

import json
from typing import Any

import httpx
import pytest

from support_bad_input import MEGABYTE, SHORT_REQUEST, rejection_message
from support_process import wait_until
from support_server import CHAT, COMPLETIONS, HELLO

pytestmark = pytest.mark.usefixtures("good_request_still_works")

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
    "5 BOM at the end": json.dumps(HELLO).encode() + b"\xef\xbb\xbf",
    "6 half a pair": b'{"model": "fake", "prompt": "\\ud800"}',
    "7 deep": b'{"model": ' + b"[" * 100_000,
    "8 NaN": b'{"model": "fake", "prompt": "a", "temperature": NaN}',
    "8 Infinity": b'{"model": "fake", "prompt": "a", "temperature": Infinity}',
    "8 1e999": b'{"model": "fake", "prompt": "a", "temperature": 1e999}',
    "9 digits": b'{"model": "fake", "prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
}


@pytest.mark.share(3)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_json_object(http: httpx.Client, path: str, body: bytes) -> None:
    rejection_message(http.post(path, content=body, headers={"content-type": "application/json"}), 400)


def test_5_a_byte_order_mark_is_no_part_of_a_body(http: httpx.Client) -> None:
    response = http.post(CHAT, content=b"\xef\xbb\xbf" + json.dumps(HELLO).encode())
    assert response.status_code == 200, response.text


def test_10_the_last_of_duplicate_keys_wins(http: httpx.Client) -> None:
    body = b'{"model": "nobody", "model": "fake", "prompt": "hello", "max_tokens": 9, "max_tokens": 3}'
    response = http.post(COMPLETIONS, content=body)
    assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 3


# -- fields ------------------------------------------------------------------------------------------------------------


def test_11_fields_without_effect_are_named(http: httpx.Client) -> None:
    ignored_fields = {"store": True, "metadata": {}, "verbosity": "low", "frobnicate": 1}
    response = http.post(CHAT, json={**HELLO, **ignored_fields})
    assert response.status_code == 200
    assert response.headers["x-ignored-parameters"] == "store, metadata, verbosity, frobnicate"
    response = http.post(CHAT, json={**HELLO, "a\r\nset-cookie: b": 1, **{f"x{i}": 1 for i in range(1000)}})
    assert response.status_code == 200 and "set-cookie" not in response.headers
    assert len(response.headers["x-ignored-parameters"]) <= 1024


CHAT_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "22 number": ({"model": 1}, "model"),
    "23 no messages": ({"messages": ...}, "messages"),
    "23 empty": ({"messages": []}, "messages"),
    "23 null": ({"messages": None}, "messages"),
    "24 no object": ({"prediction": "x"}, "prediction"),
    "24 prediction of a type": ({"prediction": {"type": "tokens", "content": "x"}}, "prediction.type"),
    "24 prediction without text": ({"prediction": {"type": "content", "content": None}}, "prediction.content"),
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
    "31 negative": ({"max_tokens": -2}, "max_tokens"),
    "31 huge": ({"max_tokens": 2**31}, "max_tokens"),
    "31 text": ({"max_tokens": "5"}, "max_tokens"),
    "31 fraction": ({"max_tokens": 1.5}, "max_tokens"),
    "31 newer name": ({"max_completion_tokens": 0}, "max_completion_tokens"),
    "32 zero": ({"n": 0}, "n"),
    "32 negative": ({"n": -1}, "n"),
    "32 many": ({"n": 129}, "n"),
    "32 billion": ({"n": 10**9}, "n"),
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
    "40 too many": ({"stop": ["a"] * 65}, "stop"),
    "40 too long together": ({"stop": ["a" * 1000] * 17}, "stop"),
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
    "48 no text": (
        {"messages": [{"role": "assistant", "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "f", "arguments": 5}}]}]},
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


@pytest.mark.share(3)
@pytest.mark.parametrize(("changes", "param"), CHAT_FIELDS.values(), ids=CHAT_FIELDS)
def test_fields_of_a_chat(http: httpx.Client, changes: dict[str, Any], param: str) -> None:
    body = {name: value for name, value in {**HELLO, **changes}.items() if value is not ...}
    message = rejection_message(http.post(CHAT, json=body), 400, param)
    assert len(message) < 500 and "169.254" not in message


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
    "37 more": ({"logprobs": 21}, "logprobs"),
    "37 many": ({"logprobs": 100_000}, "logprobs"),
    "suffix": ({"suffix": "end"}, "suffix"),
}


@pytest.mark.share(3)
@pytest.mark.parametrize(("changes", "param"), COMPLETION_FIELDS.values(), ids=COMPLETION_FIELDS)
def test_fields_of_a_completion(http: httpx.Client, changes: dict[str, Any], param: str) -> None:
    rejection_message(http.post(COMPLETIONS, json={**SHORT_REQUEST, **changes}), 400, param)


def test_22_an_unknown_model(http: httpx.Client) -> None:
    rejection_message(http.post(CHAT, json={**HELLO, "model": "nobody"}), 404, "model", "model_not_found")


@pytest.mark.share(1)
def test_29_and_30_a_prompt_over_the_context(http: httpx.Client) -> None:
    message = rejection_message(
        http.post(COMPLETIONS, json={**SHORT_REQUEST, "prompt": "x" * 512}), 400, "prompt", "context_length_exceeded"
    )
    assert "512" in message
    message = rejection_message(
        http.post(COMPLETIONS, json={**SHORT_REQUEST, "max_tokens": 508}), 400, "prompt", "context_length_exceeded"
    )
    assert "5 tokens" in message and "508" in message and "512" in message
    response = http.post(COMPLETIONS, json={"model": "fake", "prompt": "x" * 500, "seed": 1})
    assert response.json()["usage"]["completion_tokens"] == 12  # as much as fits, at most 16
    messages = [{"role": "user", "content": "x" * 100}]
    response = http.post(CHAT, json={"model": "fake", "messages": messages, "seed": 1})
    assert response.json()["usage"]["total_tokens"] == 512  # as much as fits


UNUSUAL: dict[str, dict[str, Any]] = {
    "35 tiny": {"temperature": 1e-12},
    "42 lowest": {"seed": -(2**63)},
    "42 highest": {"seed": 2**63 - 1},
    "42 negative": {"seed": -1},
    "49 special tokens": {"messages": [{"role": "user", "content": "<|im_end|></s>"}]},
    "53 user": {"user": "u" * MEGABYTE},
    "nulls": dict.fromkeys(("temperature", "stop", "n", "tools", "stream", "response_format", "seed", "timeout")),
}


@pytest.mark.share(6)
@pytest.mark.parametrize("changes", UNUSUAL.values(), ids=UNUSUAL)
def test_what_is_odd_and_allowed(http: httpx.Client, changes: dict[str, Any]) -> None:
    response = http.post(CHAT, json={**HELLO, **changes})
    assert response.status_code == 200, response.text


def test_31_zero_tokens_with_echo(http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json={**SHORT_REQUEST, "max_tokens": 0, "echo": True})
    assert response.status_code == 200 and response.json()["choices"][0]["text"] == "hello"


def test_43_stream_options_without_a_stream(http: httpx.Client) -> None:
    response = http.post(CHAT, json={**HELLO, "stream_options": {"include_usage": True}})
    assert response.status_code == 200 and response.headers["x-ignored-parameters"] == "stream_options"


@pytest.mark.share(6)
@pytest.mark.parametrize("text", ["x" * MEGABYTE, "e\u0301" * 300_000, "\u200b" * 300_000, "\0" * 100_000])
def test_51_a_megabyte_of_anything(http: httpx.Client, text: str) -> None:
    rejection_message(http.post(COMPLETIONS, json={**SHORT_REQUEST, "prompt": text}), 400)


@pytest.mark.share(6)
@pytest.mark.parametrize("value", ["-1", "0", "x", "9223372036854775808", "1.5", ""])
def test_54_a_deadline_that_is_none(http: httpx.Client, value: str) -> None:
    rejection_message(http.post(CHAT, json=HELLO, headers={"x-request-timeout-ms": value}), 400, "x-request-timeout-ms")


@pytest.mark.full
def test_63_metrics_have_no_labels_of_clients(http: httpx.Client) -> None:
    def send(number: int) -> None:
        http.post(CHAT, json={**HELLO, "model": f"m{number}"})
        http.request(f"VERB{number % 20}", f"/nowhere/{number}")

    send(0)  # the series of an unknown model and of an unknown method appear
    # The engine's gauges appear with its first load report; a router has none of them.
    wait_until(lambda: 'process_cpu_seconds_total{process="engine"}' in (page := http.get("/metrics").text)
               or "chairlift_router_" in page)  # fmt: skip
    num_lines = len(http.get("/metrics").text.splitlines())
    for number in range(1, 300):
        send(number)
    assert len(http.get("/metrics").text.splitlines()) <= num_lines + 4
