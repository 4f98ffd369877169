"""rename_model, rename_models, UsageReader: only the model's name is replaced, and the last usage counts."""

import json

import pytest

from chairlift.router.attempts.raw_response_model_and_usage import UsageReader, rename_model, rename_models
from support_shares import for_each

CHOICES = [{"index": 0, "delta": {"content": '","model":"x"}'}, "model": "inner", "logprobs": {"a": [{}]}}]
USAGE = {"prompt_tokens": 3, "prompt_tokens_details": {"cached": [1]}, "text": "}]"}
BODIES = [
    {"id": "1", "created": 5, "model": "m", "choices": CHOICES, "usage": USAGE},  # vLLM, SGLang, Ollama
    {"choices": CHOICES, "created": 5, "id": 'a"', "model": "m", "object": "c"},  # llama.cpp
    {"choices": CHOICES, "model": "m", "usage": USAGE, "tags": ["a]", 1.5, None], "is_final": True},
    {"data": [{"embedding": [-0.5, 1e-9]}], "model": 'qu"oted\\', "usage": USAGE},
    {"model": "m"},
]


@pytest.mark.parametrize("indent", [None, 2], ids=["compact", "indented"])
@pytest.mark.parametrize("body", BODIES)
def test_only_the_name_of_the_model_is_replaced(body: dict[str, object], indent: int | None) -> None:
    separators = (",", ":") if indent is None else None

    def dump(name: object) -> bytes:
        return json.dumps(body | {"model": name}, indent=indent, separators=separators).encode()

    assert rename_model(dump(body["model"]), 'al"ias') == dump('al"ias')


@for_each("body", [
    b"", b"data: [DONE]\n\n", b"[1]", b'{"choices":[{"model":"m"}]}', b'{"meta":{"model":"m"}}', b'{"model":null}',
    b'{"text":"\\"model\\":\\"m\\"}"}', b'"model":"m"', b'{"a":{"model":"m","b":1},"c":{}}', b'x "model":"m"',
])  # fmt: skip
def test_what_has_no_model_of_its_own_stays(body: bytes) -> None:
    assert rename_model(body, "alias") == body


def test_a_large_body_without_a_model_is_searched_once() -> None:
    body = b'{"a":"' + b"\\u00e9" * 200_000 + b'","data":[' + b'{"model":1},' * 50_000 + b"0]}"
    assert rename_model(body, "alias") == body


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_every_event_of_a_stream_is_renamed(ending: bytes) -> None:
    def stream(name: bytes) -> bytes:
        events = (
            b": ping",
            b'data: {"model":"%s","choices":[]}' % name,
            b'data:{"model":"%s"}' % name,
            b"data: [DONE]",
        )
        return (ending * 2).join((*events, b""))

    assert rename_models(stream(b"m"), "alias") == stream(b"alias")


def usage_event(**counts: object) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\r\n\r\n"


TEXT = b'data: {"choices":[{"delta":{"content":"\\ndata: \\"usage\\":{\\"prompt_tokens\\":9}"}}],"usage":null}\n\n'
NESTED = {"prompt_tokens": 5, "completion_tokens": 2, "details": {"cached": [1], "text": "}"}}


@for_each(("payloads", "num_events", "total"), [
    ([TEXT, b": ping\n\n" + TEXT + b"data:{}\r\n\r\n", b"data: [DONE]\n\n"], 3, None),
    ([TEXT + TEXT + b"data: [DONE]\n\n"], 2, None),
    ([TEXT, usage_event(prompt_tokens=5, completion_tokens=2), b"data:[DONE]\n\n"], 2, 7),
    ([usage_event(prompt_tokens=5, completion_tokens=n) for n in (1, 2, 3)], 3, 8),
    ([usage_event(prompt_tokens=5, completion_tokens=1) + TEXT], 2, 6),
    ([json.dumps({"usage": NESTED, "id": "x"}, indent=2).encode()], 0, 7),
    ([usage_event(prompt_tokens=5)], 1, 5), ([usage_event(prompt_tokens=5, completion_tokens=-1)], 1, None),
    ([usage_event(prompt_tokens=5, completion_tokens="2")], 1, None), ([b'{"usage":{x}}'], 0, None), ([b""], 0, None),
])  # fmt: skip
def test_tokens_are_those_of_the_last_usage_and_events_are_counted(
    payloads: list[bytes], num_events: int, total: int | None
) -> None:
    reader = UsageReader()
    for payload in payloads:
        reader.read(payload)
    assert (reader.num_events, reader.total_tokens) == (num_events, total)
