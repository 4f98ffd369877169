"""ollama_operations: what the OpenAPI document says of the routes of Ollama's API, with schemas of the responses."""

from collections.abc import Iterable, Sequence

from chairlift.protocol.ollama import fields
from chairlift.protocol.openapi import Schema, body_schema, make_operation
from chairlift.protocol.response_schemas import COUNT, TEXT, VERSION
from chairlift.protocol.schema_builders import array_schema, object_schema, with_optional

LINES: Schema = {"application/x-ndjson": {"schema": {"type": ["string", "object"]}}}
"""Content of a stream: lines of JSON."""

_ERROR_OF_OPENAI = "#/components/schemas/Error"


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


def ollama_operations(
    names: Sequence[str], *, parameters: list[Schema], error_statuses: str
) -> Iterable[tuple[str, str, Schema]]:  # fmt: skip
    """Yield path, method and description of each; `error_statuses` are those of a route that needs the model."""
    for path, method, operation in _operations(names, parameters, error_statuses):
        yield path, method, _with_own_errors(operation)


def _operations(
    names: Sequence[str], parameters: list[Schema], error_statuses: str
) -> Iterable[tuple[str, str, Schema]]:  # fmt: skip
    yield fields.CHAT_PATH, "post", make_operation(
        "Generate the next message of a conversation, in Ollama's API", MESSAGE_ANSWER,
        body=body_schema(fields.CHAT, names), also=LINES, parameters=parameters, error_statuses=error_statuses,
    )  # fmt: skip
    yield fields.GENERATE_PATH, "post", make_operation(
        "Generate a text, in Ollama's API", ANSWER, body=body_schema(fields.GENERATE, names), also=LINES,
        parameters=parameters, error_statuses=error_statuses,
    )  # fmt: skip
    yield fields.EMBED_PATH, "post", make_operation(
        "Turn texts into embeddings, in Ollama's API", VECTORS, body=body_schema(fields.EMBED, names),
        parameters=parameters, error_statuses=error_statuses,
    )  # fmt: skip
    yield fields.EMBEDDINGS_PATH, "post", make_operation(
        "Turn a text into an embedding, in Ollama's older API", VECTOR, body=body_schema(fields.EMBEDDINGS, names),
        parameters=parameters, error_statuses=error_statuses,
    )  # fmt: skip
    show = body_schema(fields.SHOW, names)
    show["properties"]["name"] = {**show["properties"]["name"], "anyOf": show["properties"]["model"]["anyOf"]}
    yield fields.SHOW_PATH, "post", make_operation(
        "Describe a model, in Ollama's API", SHOWN, body=show
    )  # fmt: skip
    yield fields.TAGS_PATH, "get", make_operation("List the models, in Ollama's API", MODEL_LIST, error_statuses="503")
    yield fields.PS_PATH, "get", make_operation(
        "List the models in memory, in Ollama's API", RUNNING, error_statuses="503"
    )  # fmt: skip
    yield fields.VERSION_PATH, "get", make_operation("Version of Ollama's API that is served", VERSION)


def _with_own_errors(operation: Schema) -> Schema:
    """Return an operation whose errors have Ollama's form."""
    for response in operation["responses"].values():
        for content in response["content"].values():
            if content["schema"] == {"$ref": _ERROR_OF_OPENAI}:
                content["schema"] = ERROR
    return operation
