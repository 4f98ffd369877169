"""RESPONSE and others: JSON schemas of the response bodies of /v1/responses."""

from chairlift.protocol.request_schemas import Schema
from chairlift.protocol.response_schemas import COUNT, MAYBE_TEXT, TEXT
from chairlift.protocol.schema_builders import array_schema, nullable, object_schema

_STATUS: Schema = {"enum": ["completed", "incomplete", "in_progress", "failed"]}
_LOGPROB: Schema = {"type": "number", "maximum": 0}
_BYTES: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}
_TOKEN = object_schema(token=TEXT, bytes=_BYTES, logprob=_LOGPROB)
_LOGPROBS = array_schema(object_schema(**_TOKEN["properties"], top_logprobs=array_schema(_TOKEN)))
_TEXT_PART = object_schema(
    type={"const": "output_text"}, text=TEXT, annotations={"type": "array", "maxItems": 0}, logprobs=_LOGPROBS
)
_ITEM: Schema = {"anyOf": [
    object_schema(id=TEXT, type={"const": "message"}, role={"const": "assistant"}, status=_STATUS,
                  content=array_schema(_TEXT_PART)),
    object_schema(id=TEXT, type={"const": "reasoning"}, summary={"type": "array", "maxItems": 0}, status=_STATUS,
                  content=array_schema(object_schema(type={"const": "reasoning_text"}, text=TEXT))),
    object_schema(id=TEXT, type={"const": "function_call"}, call_id=TEXT, name=TEXT, arguments=TEXT, status=_STATUS),
    object_schema(id=TEXT, type={"const": "custom_tool_call"}, call_id=TEXT, name=TEXT, input=TEXT),
]}  # fmt: skip
_USAGE = object_schema(
    input_tokens=COUNT, input_tokens_details=object_schema(cached_tokens=COUNT, cache_write_tokens=COUNT),
    output_tokens=COUNT, output_tokens_details=object_schema(reasoning_tokens=COUNT), total_tokens=COUNT,
)  # fmt: skip
RESPONSE = object_schema(
    id=TEXT, object={"const": "response"}, created_at=COUNT, status=_STATUS, model=TEXT,
    error=nullable(object_schema(code=TEXT, message=TEXT)),
    incomplete_details=nullable(object_schema(reason={"enum": ["max_output_tokens", "content_filter"]})),
    output=array_schema(_ITEM), usage=nullable(_USAGE), previous_response_id=MAYBE_TEXT, instructions=MAYBE_TEXT,
    metadata={"type": "object", "additionalProperties": TEXT}, store={"type": "boolean"},
)  # fmt: skip
COMPACTED = object_schema(
    id=TEXT, object={"const": "response.compaction"}, created_at=COUNT, usage=_USAGE,
    output=array_schema(object_schema(id=TEXT, type=TEXT)),
)  # fmt: skip
DELETED = object_schema(id=TEXT, object={"const": "response"}, deleted={"const": True})
INPUT_TOKENS = object_schema(object={"const": "response.input_tokens"}, input_tokens=COUNT)
INPUT_ITEMS = object_schema(
    object={"const": "list"}, data=array_schema(object_schema(id=TEXT, type=TEXT)), has_more={"type": "boolean"},
    first_id=TEXT, last_id=TEXT,
)  # fmt: skip
