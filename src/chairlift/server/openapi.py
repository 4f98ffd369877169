"""document: the OpenAPI 3.1 document of one replica, from the request tables."""

from collections.abc import Iterable, Sequence

from chairlift.protocol import response_schemas as schemas
from chairlift.protocol.batches.batch_openapi import batch_operations
from chairlift.protocol.openapi import (
    ADMIN,
    CONNECTIONS,
    EVENTS,
    PROMPT_OR_MESSAGES,
    TIMEOUT,
    Schema,
    body_schema,
    document_operations,
    lifecycle_operations,
    live_operation,
    make_document,
    make_operation,
    path_parameter,
    pooling_operations,
)
from chairlift.protocol.request_fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE
from chairlift.protocol.router_headers import PROGRESS_HEADER, ROUTER_HEADER
from chairlift.protocol.translated_openapi import translated_operations

SERVED, WORK, POOLING, HIDDEN = "503", "409 429 500", "429 500", "404"
"""Error statuses of an operation that needs the model, of a generation, of embeddings, of an admin operation."""

DESCRIPTION = CONNECTIONS + (
    " With x-chairlift-progress a response that is not streamed is a stream of events `progress`, whose last event is "
    "`response` with the response, or `error`."
)

_FLAG: Schema = {"anyOf": [{"enum": ["0", "1"]}, {"type": "string", "description": "as 0"}]}
"""A header that another value than 1 leaves without effect."""

_HEADERS: list[Schema] = [
    TIMEOUT,
    *(
        {"name": name.decode(), "in": "header", "required": False, "description": text, "schema": _FLAG}
        for name, text in (
            (ROUTER_HEADER, "1: a router sends the request; the response has x-chairlift-load"),
            (PROGRESS_HEADER, "1: send the tokens of a response that is not streamed as they come"),
        )
    ),
]
_TIMELINE: Schema = {
    "timeline": {"operationId": "timeline", "parameters": {"id": "$response.header.x-request-id"}},
}


def document(names: Sequence[str] = ()) -> Schema:
    """Return the OpenAPI 3.1 document of a server that serves its model under these names."""
    return make_document(_operations(names), DESCRIPTION, names)


def _operations(names: Sequence[str]) -> Iterable[tuple[str, str, Schema]]:
    yield "/v1/chat/completions", "post", make_operation(
        "Generate the next message of a conversation", schemas.CHAT, body=body_schema(CHAT, names), also=EVENTS,
        parameters=_HEADERS, links=_TIMELINE, error_statuses=WORK,
    )  # fmt: skip
    yield "/v1/completions", "post", make_operation(
        "Complete a prompt", schemas.COMPLETION, body=body_schema(COMPLETION, names), also=EVENTS, parameters=_HEADERS,
        links=_TIMELINE, error_statuses=WORK,
    )  # fmt: skip
    yield from pooling_operations(names, parameters=_HEADERS, links=_TIMELINE, error_statuses=POOLING)
    yield from translated_operations(names, parameters=[TIMEOUT], error_statuses=WORK, count_statuses="429")
    yield from batch_operations()
    yield "/v1/models", "get", make_operation("List the models", schemas.MODELS, error_statuses=SERVED, links={
        "model": {"operationId": "model", "parameters": {"id": "$response.body#/data/0/id"}},
    })  # fmt: skip
    yield "/v1/models/{id}", "get", make_operation(
        "Describe one model", schemas.MODEL, parameters=[path_parameter("id", names)], name="model",
        error_statuses=f"404 {SERVED}",
    )  # fmt: skip
    yield "/tokenize", "post", make_operation(
        "Turn text into token ids", schemas.TOKENIZED, body=body_schema(TOKENIZE, names) | PROMPT_OR_MESSAGES,
        links={"text": {"operationId": "text", "requestBody": {"tokens": "$response.body#/tokens"}}},
    )  # fmt: skip
    yield (
        "/detokenize",
        "post",
        make_operation(
            "Turn token ids into text", schemas.DETOKENIZED, body=body_schema(DETOKENIZE, names), name="text"
        ),
    )
    yield (
        "/tokenizer_info",
        "get",
        make_operation("Spelling of the named tokens", schemas.TOKENIZER_INFO, error_statuses=SERVED),
    )
    yield from lifecycle_operations()
    yield from document_operations()
    yield "/load", "get", make_operation("Load of the server", schemas.LOAD)
    yield (
        "/admin/drain",
        "post",
        make_operation("Finish the open requests, then stop", schemas.READY, status="202", error_statuses=HIDDEN)
        | ADMIN,
    )
    yield "/admin/state", "get", make_operation(
        "State of the scheduler and the cache", schemas.STATE, error_statuses=f"{HIDDEN} {SERVED}"
    ) | ADMIN  # fmt: skip
    yield "/admin/debug", "get", make_operation(
        "Everything that explains the server's behaviour, without texts and keys", schemas.DEBUG, error_statuses=HIDDEN
    ) | ADMIN  # fmt: skip
    yield "/admin/requests/{id}", "get", make_operation(
        "Timeline of a request", schemas.REQUEST, parameters=[path_parameter("id")], name="timeline",
        error_statuses=f"{HIDDEN} {SERVED}",
    ) | ADMIN  # fmt: skip
    yield live_operation("Events of the batch, the last minutes and the last requests, without end", f"{HIDDEN} 429")
