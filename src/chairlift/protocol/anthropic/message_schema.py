"""MESSAGE and TOKEN_COUNT: JSON schemas of the response bodies of /v1/messages."""

from chairlift.protocol.anthropic.message_writer import END_TURN, MAX_TOKENS, REFUSAL, STOP_SEQUENCE, TOOL_USE
from chairlift.protocol.request_schemas import Schema
from chairlift.protocol.response_schemas import COUNT, MAYBE_TEXT, TEXT
from chairlift.protocol.schema_builders import array_schema, object_schema

_BLOCK: Schema = {"anyOf": [
    object_schema(type={"const": "text"}, text=TEXT),
    object_schema(type={"const": "thinking"}, thinking=TEXT, signature=TEXT),
    object_schema(type={"const": "tool_use"}, id=TEXT, name=TEXT, input={"type": "object"}),
]}  # fmt: skip
MESSAGE = object_schema(
    id=TEXT, type={"const": "message"}, role={"const": "assistant"}, model=TEXT, content=array_schema(_BLOCK),
    stop_reason={"enum": [END_TURN, MAX_TOKENS, STOP_SEQUENCE, TOOL_USE, REFUSAL]}, stop_sequence=MAYBE_TEXT,
    usage=object_schema(
        input_tokens=COUNT, cache_creation_input_tokens=COUNT, cache_read_input_tokens=COUNT, output_tokens=COUNT
    ),
)  # fmt: skip
TOKEN_COUNT = object_schema(input_tokens=COUNT)
ERROR = object_schema(
    type={"const": "error"}, error=object_schema(type=TEXT, message=TEXT), request_id=TEXT,
)  # fmt: skip
