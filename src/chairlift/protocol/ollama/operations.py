"""ollama_operations: what the OpenAPI document says of the routes of Ollama's API."""

from collections.abc import Iterable, Sequence

from chairlift.protocol.ollama import fields
from chairlift.protocol.ollama.response_schema import (
    ANSWER,
    ERROR,
    MESSAGE_ANSWER,
    MODEL_LIST,
    RUNNING,
    SHOWN,
    VECTOR,
    VECTORS,
)
from chairlift.protocol.openapi import Schema, body_schema, make_operation
from chairlift.protocol.response_schemas import VERSION

LINES: Schema = {"application/x-ndjson": {"schema": {"type": ["string", "object"]}}}
"""Content of a stream: lines of JSON."""

_ERROR_OF_OPENAI = "#/components/schemas/Error"
_EITHER_NAME: Schema = {"anyOf": [
    {"required": [name], "properties": {name: {"type": "string"}}} for name in ("model", "name")
]}  # fmt: skip


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
        "Describe a model, in Ollama's API", SHOWN, body={**show, **_EITHER_NAME}
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
