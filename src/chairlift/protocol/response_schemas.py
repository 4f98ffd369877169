"""JSON schemas of the response bodies, with the fields that clients may rely on."""

from chairlift.protocol.schema_builders import Schema, array_schema, nullable, object_schema, with_optional

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
IDS: Schema = {"type": "array", "items": COUNT}

ERROR = object_schema(error=object_schema(message=TEXT, type=TEXT, param=MAYBE_TEXT, code=MAYBE_TEXT))

_USAGE = object_schema(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=object_schema(cached_tokens=COUNT),
)
_CHAT_USAGE = with_optional(
    _USAGE, completion_tokens_details=object_schema(accepted_prediction_tokens=COUNT, rejected_prediction_tokens=COUNT)
)
"""A request with a prediction has the details."""
_FINISH_REASON: Schema = {"enum": ["stop", "length", "tool_calls", "abort"]}
_STOP_REASON: Schema = {
    "type": ["string", "integer"], "description": "The stop string or the stop token id that ended the choice",
}  # fmt: skip
_LOGPROB: Schema = {"type": "number", "maximum": 0}
_BYTES: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}
_TOKEN = object_schema(token=TEXT, logprob=_LOGPROB, bytes=_BYTES)
_CHAT_LOGPROBS = object_schema(
    content=array_schema(with_optional(object_schema(**_TOKEN["properties"], top_logprobs=array_schema(_TOKEN)))),
    refusal={"type": "null"},
)
_LOGPROBS = object_schema(
    tokens=array_schema(TEXT), token_logprobs=array_schema(nullable(_LOGPROB)), text_offset=IDS,
    top_logprobs=array_schema(nullable({"type": "object", "additionalProperties": _LOGPROB})),
)  # fmt: skip
_TOOL_CALL = object_schema(id=TEXT, type={"const": "function"}, function=object_schema(name=TEXT, arguments=TEXT))
_MESSAGE = with_optional(
    object_schema(role={"const": "assistant"}, content=MAYBE_TEXT, refusal={"type": "null"}),
    reasoning_content=TEXT, tool_calls=array_schema(_TOOL_CALL, 1),
)  # fmt: skip


def _completion(kind: str, choice: Schema, usage: Schema = _USAGE) -> Schema:
    """Return the schema of a completion object of one of OpenAI's kinds."""
    return object_schema(
        id=TEXT, object={"const": kind}, created=COUNT, model=TEXT, system_fingerprint=TEXT,
        choices=array_schema(choice, 1),
        usage=usage,
    )  # fmt: skip


CHAT = with_optional(
    _completion("chat.completion", with_optional(
        object_schema(index=COUNT, message=_MESSAGE, logprobs=nullable(_CHAT_LOGPROBS), finish_reason=_FINISH_REASON),
        token_ids=IDS, stop_reason=_STOP_REASON,
    ), _CHAT_USAGE), prompt_token_ids=IDS,
)  # fmt: skip
COMPLETION = _completion("text_completion", with_optional(
    object_schema(index=COUNT, text=TEXT, logprobs=nullable(_LOGPROBS), finish_reason=_FINISH_REASON),
    token_ids=IDS, prompt_token_ids=IDS, stop_reason=_STOP_REASON,
))  # fmt: skip

MODEL = with_optional(
    object_schema(
        id=TEXT, object={"const": "model"}, created=COUNT, owned_by=TEXT, max_model_len=COUNT, max_input_tokens=COUNT,
        max_tokens=COUNT,
    ),
    details={"type": "object"},
)  # fmt: skip
MODELS = object_schema(object={"const": "list"}, data=array_schema(MODEL, 1))
TOKENIZED = with_optional(object_schema(count=COUNT, max_model_len=COUNT, tokens=IDS), token_strs=array_schema(TEXT))
DETOKENIZED = object_schema(prompt=TEXT)
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Names of the special tokens that /tokenizer_info spells."""

TOKENIZER_INFO = object_schema(**{name: {"type": ["string", "null"]} for name in NAMED_TOKENS})

_STATE: Schema = {"enum": ["starting", "ready", "draining", "dead", "stopped"]}
_SECONDS: Schema = {"type": "number", "minimum": 0}
_RATIO = nullable({"type": "number", "minimum": 0, "maximum": 1})
ALIVE = object_schema(alive={"const": True})
VERSION = object_schema(version=TEXT)
READY = object_schema(state=_STATE)
HEALTH = object_schema(state=_STATE, reason=TEXT, phase=TEXT, uptime_seconds=_SECONDS)
LOAD = object_schema(
    state=_STATE, waiting_requests=COUNT, waiting_tokens=COUNT, running_requests=COUNT, total_blocks=COUNT,
    free_blocks=COUNT, steps=COUNT, prompt_tokens=COUNT, cached_tokens=COUNT, output_tokens=COUNT,
    finished_requests=COUNT, preemptions=COUNT, step_age_seconds=_SECONDS, admission_waiting_requests=COUNT,
    admission_waiting_tokens=COUNT, expected_wait_seconds=_SECONDS, instance_id=TEXT, fingerprint=TEXT, version=TEXT,
    models=array_schema(TEXT), aliases=array_schema(TEXT), adapters=array_schema(TEXT), block_size=COUNT,
    max_running_requests=COUNT, prefill_tokens_per_second=_SECONDS, output_tokens_per_second=_SECONDS,
    cpu_ratio=_RATIO, memory_ratio=_RATIO, gpu_ratio=_RATIO, gpu_memory_ratio=_RATIO,
)  # fmt: skip
_OBJECT: Schema = {"type": "object"}
STATE = with_optional(
    object_schema(state=_STATE, reason=TEXT, restarts=COUNT, startup_report=_OBJECT),
    scheduler=_OBJECT, cache=_OBJECT, integrity_errors=array_schema(TEXT), error=TEXT,
)  # fmt: skip
"""What an engine that hangs does not tell is not there, and `error` says so."""

_PROCESS_FIELDS: dict[str, Schema] = {
    "service": TEXT, "version": TEXT, "time": _SECONDS, "uptime_seconds": _SECONDS, "settings": _OBJECT,
    "processes": _OBJECT, "host": _OBJECT, "libraries": _OBJECT, "log": array_schema(_OBJECT),
}  # fmt: skip
DEBUG = object_schema(
    **_PROCESS_FIELDS, state=_STATE, reason=TEXT, models=array_schema(TEXT), fingerprint=TEXT, admission=_OBJECT,
    resources=_OBJECT, engine=_OBJECT, recent_steps=array_schema(_OBJECT), finished_requests=array_schema(_OBJECT),
)  # fmt: skip
REQUEST: Schema = {
    "anyOf": [
        object_schema(request_id=TEXT, outcome=TEXT, seconds=_SECONDS, events=array_schema({"type": "array"}),
              wait_seconds={"type": "object"}, usage=nullable(array_schema(COUNT))),
        object_schema(request_id=TEXT, sequences={"type": "object"}),
    ]
}  # fmt: skip
"""A finished request's record, or the sequences of an open one, with `choices` if several of its choices are open."""

_POOLING_USAGE = object_schema(prompt_tokens=COUNT, total_tokens=COUNT)
EMBEDDINGS = object_schema(
    object={"const": "list"}, model=TEXT, usage=_POOLING_USAGE,
    data=array_schema(object_schema(
        object={"const": "embedding"}, index=COUNT,
        embedding={"anyOf": [array_schema({"type": "number"}), {"type": "string", "description": "base64"}]},
    )),
)  # fmt: skip
_COSINE: Schema = {"type": "number", "minimum": -1.001, "maximum": 1.001}
SCORES = object_schema(
    id=TEXT, object={"const": "list"}, created=COUNT, model=TEXT, usage=_POOLING_USAGE,
    data=array_schema(object_schema(index=COUNT, object={"const": "score"}, score=_COSINE)),
)  # fmt: skip
RERANKED = object_schema(
    id=TEXT, model=TEXT, usage=_POOLING_USAGE,
    results=array_schema(with_optional(
        object_schema(index=COUNT, relevance_score=_COSINE), document=object_schema(text=TEXT)
    )),
)  # fmt: skip

# -- of a router -------------------------------------------------------------------------------------------------------

ROUTED_MODEL = with_optional(
    object_schema(id=TEXT, object={"const": "model"}, created=COUNT, owned_by=TEXT), max_model_len=COUNT,
    max_input_tokens=COUNT, max_tokens=COUNT,
    details={"type": "object"},
)  # fmt: skip
ROUTED_MODELS = object_schema(object={"const": "list"}, data=array_schema(ROUTED_MODEL))
ROUTER_LOAD = object_schema(
    state=_STATE, open_requests=COUNT, admission_waiting_requests=COUNT,
    replicas={"type": "object", "additionalProperties": COUNT}, models=array_schema(TEXT),
)  # fmt: skip
REPLICA = object_schema(
    replica_id=TEXT, state=TEXT, cause=TEXT, reason=TEXT, seconds_in_state=_SECONDS, weight=_SECONDS,
    weight_override=nullable(_SECONDS), effective_weight=_SECONDS, open_requests=COUNT,
    load={"type": ["object", "null"]}, load_age_seconds=nullable(_SECONDS), kind=TEXT, resumable={"type": "boolean"},
    server_version=TEXT, version=TEXT, zone=TEXT, models=array_schema(TEXT), incarnation=TEXT, num_attempts=COUNT,
    num_ejections=COUNT, num_restarts=COUNT,
)  # fmt: skip
REPLICAS = object_schema(replicas=array_schema(REPLICA))
_REPLICA_COUNTS: Schema = {"type": "object", "additionalProperties": COUNT}
_DECISION = object_schema(
    at=_SECONDS, current=COUNT, target=COUNT, remove=array_schema(TEXT), reason=TEXT, limits=array_schema(TEXT),
    recommended=nullable(_SECONDS), cost_per_hour=_SECONDS, is_panic={"type": "boolean"},
    is_dry_run={"type": "boolean"},
    rules={"type": "object", "additionalProperties": object_schema(
        desired=nullable(_SECONDS), numbers={"type": "object", "additionalProperties": {"type": ["number", "null"]}}
    )},
)  # fmt: skip
FLEET = object_schema(
    model=TEXT, arguments=array_schema(TEXT), target=COUNT, version=TEXT, is_updating={"type": "boolean"},
    update_failure=TEXT, failed={"type": "object", "additionalProperties": TEXT},
    replicas=array_schema(object_schema(
        replica_id=TEXT, url=TEXT, state=TEXT, age_seconds=_SECONDS, version=TEXT, node=TEXT, replica_type=TEXT,
        reason=TEXT,
    )),
    autoscaler=object_schema(
        target=COUNT, current=COUNT, replicas=_REPLICA_COUNTS, cold_start_seconds=nullable(_SECONDS),
        newest_decision=nullable(_DECISION), decisions_with_change=array_schema(_DECISION),
    ),
)  # fmt: skip
ROUTER_DEBUG = with_optional(
    object_schema(
        **_PROCESS_FIELDS, state=_STATE, reason=TEXT, models=array_schema(TEXT), admission=_OBJECT,
        open_requests=array_schema(_OBJECT), num_open_requests=COUNT, held_requests=_OBJECT,
        replicas=array_schema(_OBJECT), transitions=array_schema(_OBJECT), sources=array_schema(_OBJECT),
        shared_state=_OBJECT, has_replica_admin_key={"type": "boolean"},
    ),
    autoscaler=_OBJECT, pool=_OBJECT,
)  # fmt: skip
"""A fleet has `autoscaler` and `pool`, too."""
