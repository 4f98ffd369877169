"""ANSWER and others: JSON schemas of the response bodies of Ollama's API."""

from chairlift.protocol.request_schemas import Schema
from chairlift.protocol.response_schemas import COUNT, TEXT, array_schema, object_schema, with_optional

ERROR = object_schema(error=TEXT)

_LOGPROB: Schema = {"type": "number", "maximum": 0}
_TOKEN = with_optional(object_schema(token=TEXT, logprob=_LOGPROB), bytes=array_schema(COUNT))
_LOGPROBS = array_schema(with_optional(_TOKEN, top_logprobs=array_schema(_TOKEN)))
_CALL = object_schema(function=object_schema(name=TEXT, arguments={"type": "object"}))
_MESSAGE = with_optional(
    object_schema(role={"const": "assistant"}, content=TEXT), thinking=TEXT, tool_calls=array_schema(_CALL, 1)
)
_COUNTS: dict[str, Schema] = dict.fromkeys(
    ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"),
    COUNT,
)


def _answer(**part: Schema) -> Schema:
    return with_optional(
        object_schema(model=TEXT, created_at=TEXT, done={"type": "boolean"}, done_reason=TEXT, **part),
        logprobs=_LOGPROBS, **_COUNTS,
    )  # fmt: skip


MESSAGE_ANSWER = _answer(message=_MESSAGE)
ANSWER = with_optional(_answer(response=TEXT), thinking=TEXT)
_VECTOR = array_schema({"type": "number"})
VECTORS = with_optional(object_schema(model=TEXT, embeddings=array_schema(_VECTOR)), **_COUNTS)
VECTOR = object_schema(embedding=_VECTOR)

_KIND: dict[str, Schema] = {"family": TEXT, "families": array_schema(TEXT)}
_DETAILS = object_schema(
    parent_model=TEXT, format=TEXT, parameter_size=TEXT, quantization_level=TEXT, **_KIND
)  # fmt: skip
_LISTED = with_optional(object_schema(name=TEXT, model=TEXT, digest=TEXT, details=_DETAILS), size=COUNT)
MODEL_LIST = object_schema(models=array_schema(with_optional(_LISTED, modified_at=TEXT)))
RUNNING = object_schema(
    models=array_schema(with_optional(_LISTED, expires_at=TEXT, size_vram=COUNT, context_length=COUNT))
)
SHOWN = object_schema(
    modified_at=TEXT, details=_DETAILS, model_info={"type": "object"}, capabilities=array_schema(TEXT, 1)
)
