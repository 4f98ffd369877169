"""Answers: schemas of what the routes answer, as far as clients may rely on it."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
IDS: Schema = {"type": "array", "items": COUNT}


def shape(**properties: Schema) -> Schema:
    """Return the schema of an object that always has these."""
    return {"type": "object", "required": [*properties], "properties": properties}


def also(schema: Schema, **properties: Schema) -> Schema:
    """Return the schema of an object that may have these, too."""
    return {**schema, "properties": {**schema["properties"], **properties}}


def many(items: Schema, least: int = 0) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items, "minItems": least}


def maybe(schema: Schema) -> Schema:
    """Return the schema of this or null."""
    return {"anyOf": [schema, {"type": "null"}]}


ERROR = shape(error=shape(message=TEXT, type=TEXT, param=MAYBE_TEXT, code=MAYBE_TEXT))

_USAGE = shape(
    prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT, prompt_tokens_details=shape(cached_tokens=COUNT)
)
_REASON: Schema = {"enum": ["stop", "length", "tool_calls", "abort"]}
_SCORE: Schema = {"type": "number", "maximum": 0}
_BYTES: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}
_TOKEN = shape(token=TEXT, logprob=_SCORE, bytes=_BYTES)
_CHAT_SCORES = shape(
    content=many(also(shape(**_TOKEN["properties"], top_logprobs=many(_TOKEN)))), refusal={"type": "null"}
)
_SCORES = shape(
    tokens=many(TEXT), token_logprobs=many(maybe(_SCORE)), text_offset=IDS,
    top_logprobs=many(maybe({"type": "object", "additionalProperties": _SCORE})),
)  # fmt: skip
_CALL = shape(id=TEXT, type={"const": "function"}, function=shape(name=TEXT, arguments=TEXT))
_MESSAGE = also(
    shape(role={"const": "assistant"}, content=MAYBE_TEXT, refusal={"type": "null"}),
    reasoning_content=TEXT, tool_calls=many(_CALL, 1),
)  # fmt: skip


def _generated(kind: str, choice: Schema) -> Schema:
    return shape(
        id=TEXT, object={"const": kind}, created=COUNT, model=TEXT, system_fingerprint=TEXT, choices=many(choice, 1),
        usage=_USAGE,
    )  # fmt: skip


CHAT = also(
    _generated("chat.completion", also(
        shape(index=COUNT, message=_MESSAGE, logprobs=maybe(_CHAT_SCORES), finish_reason=_REASON), token_ids=IDS
    )), prompt_token_ids=IDS,
)  # fmt: skip
COMPLETION = _generated("text_completion", also(
    shape(index=COUNT, text=TEXT, logprobs=maybe(_SCORES), finish_reason=_REASON),
    token_ids=IDS, prompt_token_ids=IDS,
))  # fmt: skip

MODEL = shape(id=TEXT, object={"const": "model"}, created=COUNT, owned_by=TEXT, max_model_len=COUNT)
MODELS = shape(object={"const": "list"}, data=many(MODEL, 1))
TOKENIZED = also(shape(count=COUNT, max_model_len=COUNT, tokens=IDS), token_strs=many(TEXT))
DETOKENIZED = shape(prompt=TEXT)

_STATE: Schema = {"enum": ["starting", "ready", "draining", "dead", "stopped"]}
_SECONDS: Schema = {"type": "number", "minimum": 0}
ALIVE = shape(alive={"const": True})
READY = shape(state=_STATE)
HEALTH = shape(state=_STATE, reason=TEXT, phase=TEXT, uptime_seconds=_SECONDS)
LOAD = shape(
    state=_STATE, waiting_requests=COUNT, waiting_tokens=COUNT, running_requests=COUNT, total_blocks=COUNT,
    free_blocks=COUNT, steps=COUNT, prompt_tokens=COUNT, cached_tokens=COUNT, output_tokens=COUNT,
    finished_requests=COUNT, preemptions=COUNT, step_age_seconds=_SECONDS, admission_waiting_requests=COUNT,
    admission_waiting_tokens=COUNT, expected_wait_seconds=_SECONDS,
)  # fmt: skip
STATE = shape(
    scheduler={"type": "object"}, cache={"type": "object"}, integrity_errors=many(TEXT), start={"type": "object"}
)
REQUEST: Schema = {
    "anyOf": [
        shape(request_id=TEXT, outcome=TEXT, seconds=_SECONDS, events=many({"type": "array"}),
              wait_seconds={"type": "object"}, usage=maybe(many(COUNT))),
        shape(request_id=TEXT, rides={"type": "object"}),
    ]
}  # fmt: skip
"""How a request went, or where it is."""
