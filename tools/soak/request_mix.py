"""Orders: the n-th request of a soak, drawn from its seed alone: kind, body, manners, and what may come of it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from soak.bad_requests import CHAT, COMPLETIONS, MODEL, cases
from soak.raw_client import ClientBehavior, End, request

WORDS = (
    "lift", "snow", "mountain", "rope", "chair", "valley", "pine", "storm", "guide", "summit", "ticket", "sun",
    "ridge", "village", "ski", "wind", "slope", "station", "morning", "queue",
)  # fmt: skip
PATIENCE = 90.0
WHOLE = frozenset({End.ANSWERED, End.DONE, End.ERROR_EVENT})
GONE = WHOLE | {End.LEFT, End.LET_GO}
SHARED = "You are the guide of a small mountain village. " * 8


@dataclass(frozen=True, slots=True)
class Order:
    """One request.

    Attributes:
        kind: of what it is one, for the table.
        sent: its bytes.
        statuses: that an answer may have; 429 and 503 are judged apart.
        ends: how it may end.
        manner: of the client.
        seconds: when a client with such manners leaves.
        patience: seconds after which nothing more is waited for.
    """

    kind: str
    sent: bytes
    statuses: frozenset[int] = frozenset({200})
    ends: frozenset[End] = WHOLE
    manner: ClientBehavior = ClientBehavior.STAYS
    seconds: float = 0.0
    patience: float = PATIENCE


@dataclass(frozen=True, slots=True)
class _Draw:
    """What an order is made with."""

    dice: Random
    number: int
    key: str

    def words(self, least: int, most: int) -> str:
        return " ".join(self.dice.choice(WORDS) for _ in range(self.dice.randint(least, most)))

    def post(self, path: str, body: Mapping[str, Any], **headers: str) -> bytes:
        asked = {"model": MODEL, "max_tokens": self.dice.randint(4, 48), "seed": self.number, **body}
        return request("POST", path, json.dumps(asked).encode(), authorization=f"Bearer {self.key}", **headers)

    def chat(self, text: str = "", **more: Any) -> bytes:
        said = text or f"Tell me of the {self.words(2, 12)}."
        return self.post(CHAT, {"messages": [{"role": "user", "content": said}], **more})


def _chat(draw: _Draw) -> Order:
    return Order("chat", draw.chat(temperature=draw.dice.choice([0, 0.7, 1.0])))


def _chat_stream(draw: _Draw) -> Order:
    return Order("chat, streamed", draw.chat(stream=True, stream_options={"include_usage": True}))


def _completion(draw: _Draw) -> Order:
    return Order(
        "completion", draw.post(COMPLETIONS, {"prompt": [draw.words(3, 20), draw.words(3, 20)], "stop": ["."]})
    )


def _completion_stream(draw: _Draw) -> Order:
    asked = {"prompt": draw.words(3, 30), "stream": True, "logprobs": draw.dice.choice([None, 3]), "echo": True}
    return Order("completion, streamed", draw.post(COMPLETIONS, asked))


def _tools(draw: _Draw) -> Order:
    schema = {"type": "object", "properties": {draw.dice.choice(WORDS): {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": f"f{draw.number}_{i}", "parameters": schema}} for i in range(2)]
    choice = draw.dice.choice(["auto", "required", {"type": "function", "function": {"name": f"f{draw.number}_0"}}])
    return Order("tools", draw.chat(tools=tools, tool_choice=choice, stream=draw.dice.random() < 0.5, max_tokens=64))


def _schema(draw: _Draw) -> Order:
    """A JSON Schema that never came before."""
    names = draw.dice.sample(WORDS, 3)
    kinds = [{"type": "integer"}, {"type": "boolean"}, {"enum": [f"e{draw.number}", "other"]}]
    schema = {"type": "object", "properties": dict(zip(names, kinds, strict=True)), "required": names,
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return Order("new JSON schema", draw.chat(response_format=form, stream=draw.dice.random() < 0.5))


def _choices(draw: _Draw) -> Order:
    return Order("n = 4", draw.chat(n=4, stream=draw.dice.random() < 0.5, temperature=1.0))


def _long(draw: _Draw) -> Order:
    return Order("long prompt", draw.chat(draw.words(150, 280), max_tokens=draw.dice.randint(1, 8)))


def _shared(draw: _Draw) -> Order:
    messages = [{"role": "system", "content": SHARED}, {"role": "user", "content": draw.words(2, 10)}]
    return Order("shared prefix", draw.post(CHAT, {"messages": messages}))


def _other(draw: _Draw) -> Order:
    auth = {"authorization": f"Bearer {draw.key}"}
    sent = draw.dice.choice([
        request("GET", "/v1/models", **auth), request("GET", "/health"), request("GET", "/load", **auth),
        request("GET", "/openapi.json", **auth),
        request("POST", "/tokenize", json.dumps({"prompt": draw.words(5, 500)}).encode(), **auth),
        request("POST", "/detokenize", json.dumps({"tokens": [draw.dice.randrange(500) for _ in range(50)]}).encode(),
                **auth),
    ])  # fmt: skip
    return Order("other routes", sent)


def _timeout(draw: _Draw) -> Order:
    body = {"messages": [{"role": "user", "content": draw.words(2, 50)}], "max_tokens": 400, "ignore_eos": True,
            "stream": draw.dice.random() < 0.5}  # fmt: skip
    sent = draw.post(CHAT, body, x_request_timeout_ms=str(draw.dice.randint(1, 400)))
    return Order("short timeout", sent, statuses=frozenset({200, 408}))


def _bad(draw: _Draw) -> Order:
    name, (sent, status) = draw.dice.choice(list(cases(draw.key).items()))
    return Order(f"bad: {name}", sent, statuses=frozenset({status}))


def _long_stream(draw: _Draw) -> bytes:
    return draw.chat(stream=True, max_tokens=200, ignore_eos=True, n=draw.dice.choice([1, 1, 4]))


def _leaves(draw: _Draw) -> Order:
    sent = _long_stream(draw) if draw.dice.random() < 0.6 else draw.chat(max_tokens=200, ignore_eos=True)
    manner = draw.dice.choice([ClientBehavior.LEAVES, ClientBehavior.LEAVES, ClientBehavior.RESETS])
    return Order("leaves", sent, ends=GONE, manner=manner, seconds=draw.dice.expovariate(3.0) + 0.001)


def _half_closes(draw: _Draw) -> Order:
    return Order(
        "half-closes", _long_stream(draw), ends=GONE, manner=ClientBehavior.HALF_CLOSES, seconds=draw.dice.random() / 4
    )


def _dawdles(draw: _Draw) -> Order:
    sent = draw.chat(stream=True, max_tokens=400, ignore_eos=True, n=4, logprobs=True, top_logprobs=10)
    return Order("slow reader", sent, ends=GONE, manner=ClientBehavior.DAWDLES)


def _stalls(draw: _Draw) -> Order:
    sent = draw.chat(draw.words(100, 200))
    return Order("stalled body", sent, statuses=frozenset({200, 408}), ends=GONE, manner=ClientBehavior.STALLS)


KINDS: Mapping[Callable[[_Draw], Order], int] = {
    _chat: 14, _chat_stream: 14, _completion: 7, _completion_stream: 7, _tools: 7, _schema: 8, _choices: 4, _long: 5,
    _shared: 10, _other: 5, _timeout: 4, _bad: 14, _leaves: 9, _half_closes: 2, _dawdles: 1, _stalls: 1,
}  # fmt: skip
"""Kind -> its share."""


def order(seed: int, number: int, key: str) -> Order:
    """Return the request of this number; always the same one for a seed, a number and a key."""
    dice = Random(f"{seed}/{number}")
    (make,) = dice.choices(list(KINDS), list(KINDS.values()))
    return make(_Draw(dice, number, key))


def hasty_order(seed: int, number: int, key: str) -> Order:
    """Return a request of the same kinds but those that take their time; capacity is measured with these."""
    dice = Random(f"hasty {seed}/{number}")
    kinds = {make: share for make, share in KINDS.items() if make not in (_timeout, _half_closes, _dawdles, _stalls)}
    (make,) = dice.choices(list(kinds), list(kinds.values()))
    return make(_Draw(dice, number, key))
