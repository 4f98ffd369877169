"""SoakRequest: kind, body, client behavior and allowed results of the n-th request, which the seed determines."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from soak.bad_requests import CHAT, COMPLETIONS, MODEL, bad_requests
from soak.raw_client import ClientBehavior, Outcome, build_request

WORDS = (
    "lift", "snow", "mountain", "rope", "chair", "valley", "pine", "storm", "guide", "summit", "ticket", "sun",
    "ridge", "village", "ski", "wind", "slope", "station", "morning", "queue",
)  # fmt: skip
TIMEOUT_SECONDS = 90.0
COMPLETE = frozenset({Outcome.RESPONSE, Outcome.STREAM, Outcome.ERROR_EVENT})
COMPLETE_OR_CLOSED = COMPLETE | {Outcome.CLIENT_CLOSED, Outcome.SERVER_CLOSED}
SHARED_PREFIX = "You are the guide of a small mountain village. " * 8


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One request and its allowed results.

    Attributes:
        kind: name of its kind, for the report.
        data: its bytes.
        statuses: allowed statuses of the response; the verdict judges 429 and 503 separately.
        outcomes: allowed outcomes.
        behavior: how the client behaves.
        delay_seconds: time until a client that disconnects, resets or half-closes does so.
        timeout_seconds: how long the client waits for the end of the response.
    """

    kind: str
    data: bytes
    statuses: frozenset[int] = frozenset({200})
    outcomes: frozenset[Outcome] = COMPLETE
    behavior: ClientBehavior = ClientBehavior.WAITS
    delay_seconds: float = 0.0
    timeout_seconds: float = TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class _RequestSource:
    """What a request is made from: a random generator, its number, and the client's API key."""

    rng: Random
    number: int
    key: str

    def words(self, least: int, most: int) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(least, most)))

    def post(self, path: str, body: Mapping[str, Any], **headers: str) -> bytes:
        fields = {"model": MODEL, "max_tokens": self.rng.randint(4, 48), "seed": self.number, **body}
        return build_request("POST", path, json.dumps(fields).encode(), authorization=f"Bearer {self.key}", **headers)

    def chat(self, text: str = "", **more: Any) -> bytes:
        content = text or f"Tell me of the {self.words(2, 12)}."
        return self.post(CHAT, {"messages": [{"role": "user", "content": content}], **more})


def _chat(source: _RequestSource) -> SoakRequest:
    return SoakRequest("chat", source.chat(temperature=source.rng.choice([0, 0.7, 1.0])))


def _chat_stream(source: _RequestSource) -> SoakRequest:
    return SoakRequest("chat, streamed", source.chat(stream=True, stream_options={"include_usage": True}))


def _completion(source: _RequestSource) -> SoakRequest:
    return SoakRequest(
        "completion", source.post(COMPLETIONS, {"prompt": [source.words(3, 20), source.words(3, 20)], "stop": ["."]})
    )


def _completion_stream(source: _RequestSource) -> SoakRequest:
    body = {"prompt": source.words(3, 30), "stream": True, "logprobs": source.rng.choice([None, 3]), "echo": True}
    return SoakRequest("completion, streamed", source.post(COMPLETIONS, body))


def _tools(source: _RequestSource) -> SoakRequest:
    schema = {"type": "object", "properties": {source.rng.choice(WORDS): {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": f"f{source.number}_{i}", "parameters": schema}} for i in range(2)
    ]
    choice = source.rng.choice(["auto", "required", {"type": "function", "function": {"name": f"f{source.number}_0"}}])
    return SoakRequest(
        "tools", source.chat(tools=tools, tool_choice=choice, stream=source.rng.random() < 0.5, max_tokens=64)
    )


def _new_schema(source: _RequestSource) -> SoakRequest:
    """Return a request with a JSON Schema that no earlier request has."""
    names = source.rng.sample(WORDS, 3)
    kinds = [{"type": "integer"}, {"type": "boolean"}, {"enum": [f"e{source.number}", "other"]}]
    schema = {"type": "object", "properties": dict(zip(names, kinds, strict=True)), "required": names,
              "additionalProperties": False}  # fmt: skip
    response_format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return SoakRequest(
        "new JSON schema", source.chat(response_format=response_format, stream=source.rng.random() < 0.5)
    )


def _multiple_choices(source: _RequestSource) -> SoakRequest:
    return SoakRequest("n = 4", source.chat(n=4, stream=source.rng.random() < 0.5, temperature=1.0))


def _long_prompt(source: _RequestSource) -> SoakRequest:
    return SoakRequest("long prompt", source.chat(source.words(150, 280), max_tokens=source.rng.randint(1, 8)))


def _shared_prefix(source: _RequestSource) -> SoakRequest:
    messages = [{"role": "system", "content": SHARED_PREFIX}, {"role": "user", "content": source.words(2, 10)}]
    return SoakRequest("shared prefix", source.post(CHAT, {"messages": messages}))


def _other_route(source: _RequestSource) -> SoakRequest:
    auth = {"authorization": f"Bearer {source.key}"}
    prompt = {"prompt": source.words(5, 500)}
    tokens = {"tokens": [source.rng.randrange(500) for _ in range(50)]}
    data = source.rng.choice(
        [
            build_request("GET", "/v1/models", **auth),
            build_request("GET", "/health"),
            build_request("GET", "/load", **auth),
            build_request("GET", "/openapi.json", **auth),
            build_request("POST", "/tokenize", json.dumps(prompt).encode(), **auth),
            build_request("POST", "/detokenize", json.dumps(tokens).encode(), **auth),
        ]
    )
    return SoakRequest("other routes", data)


def _short_timeout(source: _RequestSource) -> SoakRequest:
    body = {"messages": [{"role": "user", "content": source.words(2, 50)}], "max_tokens": 400, "ignore_eos": True,
            "stream": source.rng.random() < 0.5}  # fmt: skip
    data = source.post(CHAT, body, x_request_timeout_ms=str(source.rng.randint(1, 400)))
    return SoakRequest("short timeout", data, statuses=frozenset({200, 400, 408}))


def _bad_input(source: _RequestSource) -> SoakRequest:
    name, (data, status) = source.rng.choice(list(bad_requests(source.key).items()))
    return SoakRequest(f"bad: {name}", data, statuses=frozenset({status}))


def _long_stream(source: _RequestSource) -> bytes:
    return source.chat(stream=True, max_tokens=200, ignore_eos=True, n=source.rng.choice([1, 1, 4]))


def _disconnects(source: _RequestSource) -> SoakRequest:
    data = _long_stream(source) if source.rng.random() < 0.6 else source.chat(max_tokens=200, ignore_eos=True)
    behavior = source.rng.choice([ClientBehavior.DISCONNECTS, ClientBehavior.DISCONNECTS, ClientBehavior.RESETS])
    return SoakRequest(
        "disconnects",
        data,
        outcomes=COMPLETE_OR_CLOSED,
        behavior=behavior,
        delay_seconds=source.rng.expovariate(3.0) + 0.001,
    )


def _half_closes(source: _RequestSource) -> SoakRequest:
    return SoakRequest(
        "half-closes",
        _long_stream(source),
        outcomes=COMPLETE_OR_CLOSED,
        behavior=ClientBehavior.HALF_CLOSES,
        delay_seconds=source.rng.random() / 4,
    )


def _slow_reader(source: _RequestSource) -> SoakRequest:
    data = source.chat(stream=True, max_tokens=400, ignore_eos=True, n=4, logprobs=True, top_logprobs=10)
    return SoakRequest("slow reader", data, outcomes=COMPLETE_OR_CLOSED, behavior=ClientBehavior.READS_SLOWLY)


def _stalled_body(source: _RequestSource) -> SoakRequest:
    data = source.chat(source.words(100, 200))
    return SoakRequest(
        "stalled body",
        data,
        statuses=frozenset({200, 408}),
        outcomes=COMPLETE_OR_CLOSED,
        behavior=ClientBehavior.STALLS,
    )


KIND_WEIGHTS: Mapping[Callable[[_RequestSource], SoakRequest], int] = {
    _chat: 14, _chat_stream: 14, _completion: 7, _completion_stream: 7, _tools: 7, _new_schema: 8,
    _multiple_choices: 4, _long_prompt: 5, _shared_prefix: 10, _other_route: 5, _short_timeout: 4, _bad_input: 14,
    _disconnects: 9, _half_closes: 2, _slow_reader: 1, _stalled_body: 1,
}  # fmt: skip
"""Function that makes a request of one kind -> the kind's weight in the traffic."""

SLOW_KINDS = frozenset({_short_timeout, _half_closes, _slow_reader, _stalled_body})
"""Kinds whose duration depends on the client; the capacity is measured without them."""


def make_request(seed: int, number: int, key: str) -> SoakRequest:
    """Return the request with this number; equal arguments give equal requests."""
    rng = Random(f"{seed}/{number}")
    (make,) = rng.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))
    return make(_RequestSource(rng, number, key))


def make_capacity_request(seed: int, number: int, key: str) -> SoakRequest:
    """Return a request for the measurement of the capacity: as `make_request`, without SLOW_KINDS."""
    rng = Random(f"capacity {seed}/{number}")
    weights = {make: weight for make, weight in KIND_WEIGHTS.items() if make not in SLOW_KINDS}
    (make,) = rng.choices(list(weights), list(weights.values()))
    return make(_RequestSource(rng, number, key))
