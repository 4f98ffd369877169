"""Chunk, parse_chunk and ChunkRewriter: the chunks of a Chairlift replica's stream, read and rewritten as bytes.

data: {"id":..,"created":..,"system_fingerprint":..,"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,
└────────────── head: that of the first attempt stays ─────┘
"finish_reason":null,"token_ids":[17],"position":4}]}
                    └── removed unless the client asked ──┘

The server writes compact JSON with these members in this order, so a chunk is cut and not parsed; a chunk of another
form is parsed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from chairlift.core.errors import ChairliftError
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.router.attempts.raw_response_model_and_usage import rename_model

DATA = b"data: "
CHOICES = b',"choices":['
FINISH_REASON = b',"finish_reason":'
_INDEX = re.compile(rb'\{"index":(\d{1,9}),')
_TAIL = re.compile(
    rb',"finish_reason":(null|"\w+")(?:,"stop_reason":(?:\d{1,10}|"(?:[^"\\]|\\.)*"))?'
    rb'(,"token_ids":\[(|\d{1,9}(?:,\d{1,9})*)\],"position":(\d{1,9}))?\}\](?:,"usage":(?:null|\{[^{}]*\}))?\}\n\n'
)
_EMPTY = (b'"delta":{},"logprobs":null', b'"text":"","logprobs":null')
"""What is in a chunk that a server would not send without return_token_ids."""


class BadChunk(ChairliftError):
    """A replica's stream is not what it should be."""

    code = "bad_chunk"


class ChunkKind(StrEnum):
    """What a chunk is about."""

    CHOICE = "choice"
    USAGE = "usage"  # token counts, behind all choices
    OPAQUE = "opaque"  # not parsed


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a response.

    Attributes:
        payload: the event with its empty line; b"" for progress, which the client does not get.
        kind: what it is about.
        choice_index: the choice.
        token_ids: new tokens; () for none.
        position: number of the choice's tokens before these; None where the chunk has no token ids.
        is_last: whether the choice has finished with it.
        logprobs: of the new tokens, in the shape of the response; only in progress.
    """

    payload: bytes
    kind: ChunkKind = ChunkKind.OPAQUE
    choice_index: int = 0
    token_ids: tuple[int, ...] = ()
    position: int | None = None
    is_last: bool = False
    logprobs: Mapping[str, Any] | None = None


def parse_chunk(payload: bytes) -> Chunk:
    """Parse a data event of a Chairlift server's stream. Raises BadChunk."""
    choices = payload.find(CHOICES)
    if choices < 0:
        raise BadChunk(f"a chunk has no choices: {payload[:200]!r}")
    choices += len(CHOICES)
    if payload.startswith(b"]", choices):
        return Chunk(payload, ChunkKind.USAGE)
    index = _INDEX.match(payload, choices)
    tail = _TAIL.fullmatch(payload, max(0, payload.rfind(FINISH_REASON)))
    if index is None or tail is None:
        return _parse_json(payload)
    reason, has_ids, ids, position = tail.groups()
    return Chunk(
        payload,
        ChunkKind.CHOICE,
        int(index[1]),
        tuple(map(int, ids.split(b","))) if ids else (),
        int(position) if has_ids else None,
        reason != b"null",
    )


class ChunkRewriter:
    """Rewrites the chunks of all attempts of one request, so that they read like one response."""

    def __init__(self, *, keeps_token_ids: bool, model: str = "") -> None:
        """Start; `keeps_token_ids` is whether the client has asked for token ids.

        `model` is the model's name for the client, "" for that of the replica.
        """
        self._keeps_token_ids, self._model = keeps_token_ids, model
        self._head = b""

    def rewrite(self, chunk: Chunk) -> bytes:
        """Return the client's bytes of a chunk; b"" for a chunk that only carries token ids.

        The head (id, time, model, system fingerprint) is that of the first chunk of the first attempt.
        """
        payload = chunk.payload
        if not payload or chunk.kind is ChunkKind.OPAQUE:
            return payload
        if not self._head:
            self._head = payload[: payload.index(CHOICES) + len(CHOICES)]
            if self._model:
                self._head = DATA + rename_model(self._head[len(DATA) :], self._model)
        if not payload.startswith(self._head):
            payload = self._head + payload[payload.index(CHOICES) + len(CHOICES) :]
        if self._keeps_token_ids or chunk.position is None:
            return payload
        end = payload.rfind(FINISH_REASON)
        tail = _TAIL.fullmatch(payload, max(0, end))
        if tail is None:
            return _without_token_ids(payload)
        start = payload.index(b",", len(self._head)) + 1  # behind the index
        if payload[start:end] in _EMPTY and not chunk.is_last:
            return b""
        return payload[: tail.start(2)] + payload[tail.end(2) :]


def _parse_json(payload: bytes) -> Chunk:
    """Parse a chunk whose members have another order."""
    choice = _choice_of(_loads(payload))
    token_ids = choice.get("token_ids")
    try:
        return Chunk(
            payload,
            ChunkKind.CHOICE,
            number_of(choice["index"]),
            tuple(map(number_of, token_ids or ())),
            None if token_ids is None else number_of(choice["position"]),
            choice.get("finish_reason") is not None,
        )
    except (KeyError, TypeError, ValueError):
        raise BadChunk(f"a chunk's choice has no index, or token ids without position: {payload[:200]!r}") from None


def number_of(value: object) -> int:
    """Return a token id, choice or position. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= MAX_INT32:
        raise ValueError(f"{str(value)[:20]!r} is no number of 0 to {MAX_INT32}")
    return value


def _without_token_ids(payload: bytes) -> bytes:
    body = _loads(payload)
    choice = _choice_of(body)
    choice.pop("token_ids", None)
    choice.pop("position", None)
    is_empty = choice.get("delta") == {} or choice.get("text") == ""
    if is_empty and choice.get("logprobs") is None and choice.get("finish_reason") is None:
        return b""
    return DATA + orjson.dumps(body) + b"\n\n"


def _loads(payload: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(payload[len(DATA) :])
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise BadChunk(f"a chunk is no JSON object: {payload[:200]!r}")
    return body


def _choice_of(body: dict[str, Any]) -> dict[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadChunk("a chunk has more than one choice, or none")
    return choices[0]
