"""document: the OpenAPI 3.1 document of a router: its own routes, those of Chairlift's replicas, and of a fleet."""

from collections.abc import Iterable, Sequence

from chairlift.protocol import response_schemas as schemas
from chairlift.protocol.batches.batch_openapi import batch_operations
from chairlift.protocol.openapi import (
    ADMIN,
    CONNECTIONS,
    EVENTS,
    LIVE,
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
from chairlift.protocol.translated_openapi import translated_operations

ROUTED, WORK, HIDDEN = "429 500 502 503 504", "409 429 500 502 504", "404"
"""Error statuses of an operation that is passed on, of a generation, of an admin operation."""

DESCRIPTION = CONNECTIONS + (
    " This is a router: replicas respond to requests. It passes every path that is not listed here on to a replica, "
    "except those below /admin/. An administrator's responses name the replica in x-chairlift-replica and the number "
    "of attempts in x-chairlift-attempts."
)

_REPLICA_ID: Schema = {"type": "string", "minLength": 1, "description": "URL of a replica, as /admin/replicas lists it"}
_OF_REPLICA: Schema = {"name": "replica_id", "in": "query", "required": True, "schema": _REPLICA_ID}
_DRAIN: Schema = {"type": "object", "properties": {"replica_id": _REPLICA_ID}, "required": ["replica_id"]}
_WEIGHT: Schema = {
    "type": "object", "required": ["replica_id", "weight"],
    "properties": {
        "replica_id": _REPLICA_ID,
        "weight": {
            "type": ["number", "null"], "minimum": 0, "maximum": 1000,
            "description": "Share of the requests relative to the other replicas; null: the weight of its source",
        },
    },
}  # fmt: skip


def document(names: Sequence[str] = (), more_operations: Iterable[tuple[str, str, Schema]] = ()) -> Schema:
    """Return the OpenAPI 3.1 document of a router whose models have these names; more operations come last."""
    return make_document((*_routed_operations(names), *_own_operations(names), *more_operations), DESCRIPTION, names)


def _routed_operations(names: Sequence[str]) -> Iterable[tuple[str, str, Schema]]:
    """Yield the operations that a replica of Chairlift responds to."""
    yield "/v1/chat/completions", "post", make_operation(
        "Generate the next message of a conversation", schemas.CHAT, body=body_schema(CHAT, names), also=EVENTS,
        parameters=[TIMEOUT], error_statuses=WORK,
    )  # fmt: skip
    yield "/v1/completions", "post", make_operation(
        "Complete a prompt", schemas.COMPLETION, body=body_schema(COMPLETION, names), also=EVENTS,
        parameters=[TIMEOUT], error_statuses=WORK,
    )  # fmt: skip
    yield from pooling_operations(names, parameters=[TIMEOUT], error_statuses="429 500 502 504")
    yield from translated_operations(names, parameters=[TIMEOUT], error_statuses=WORK, count_statuses=ROUTED)
    yield "/tokenize", "post", make_operation(
        "Turn text into token ids", schemas.TOKENIZED, body=body_schema(TOKENIZE, names) | PROMPT_OR_MESSAGES,
        links={"text": {"operationId": "text", "requestBody": {"tokens": "$response.body#/tokens"}}},
        error_statuses=ROUTED,
    )  # fmt: skip
    yield "/detokenize", "post", make_operation(
        "Turn token ids into text", schemas.DETOKENIZED, body=body_schema(DETOKENIZE, names), name="text",
        error_statuses=ROUTED,
    )  # fmt: skip
    yield "/tokenizer_info", "get", make_operation(
        "Spelling of the named tokens", schemas.TOKENIZER_INFO, error_statuses=ROUTED
    )  # fmt: skip


def _own_operations(names: Sequence[str]) -> Iterable[tuple[str, str, Schema]]:
    """Yield the operations that the router itself responds to."""
    yield from batch_operations()
    yield "/v1/models", "get", make_operation("List the models of all replicas", schemas.ROUTED_MODELS, links={
        "model": {"operationId": "model", "parameters": {"id": "$response.body#/data/0/id"}},
    })  # fmt: skip
    yield "/v1/models/{id}", "get", make_operation(
        "Describe one model", schemas.ROUTED_MODEL, parameters=[path_parameter("id", names)], name="model",
        error_statuses="404",
    )  # fmt: skip
    yield from lifecycle_operations()
    yield from document_operations()
    yield "/load", "get", make_operation("Load of the router", schemas.ROUTER_LOAD)
    yield "/admin/drain", "post", make_operation(
        "Finish the open requests, then stop the router", schemas.READY, status="202", error_statuses=HIDDEN
    ) | ADMIN  # fmt: skip
    yield "/admin/replicas", "get", make_operation(
        "List the replicas with their health and load", schemas.REPLICAS, error_statuses=HIDDEN
    ) | ADMIN  # fmt: skip
    yield "/admin/debug", "get", make_operation(
        "Everything that explains the router's behaviour, without texts and keys", schemas.ROUTER_DEBUG,
        error_statuses=HIDDEN,
    ) | ADMIN  # fmt: skip
    for verb, summary, body in (
        ("drain", "Send a replica no new requests, and hand its streams over", _DRAIN),
        ("undrain", "Use a drained replica again", _DRAIN),
        ("weight", "Set the weight of a replica", _WEIGHT),
    ):
        yield f"/admin/replicas/{verb}", "post", make_operation(summary, schemas.REPLICA, body=body) | ADMIN
    yield "/admin/replicas/debug", "get", make_operation(
        "GET /admin/debug of one replica", {"type": "object"}, parameters=[_OF_REPLICA], error_statuses="400 404 502"
    ) | ADMIN  # fmt: skip
    yield "/admin/replicas/live", "get", make_operation(
        "GET /admin/live of one replica", kind="text/event-stream", parameters=[_OF_REPLICA],
        error_statuses="400 404 429 502",
    ) | LIVE  # fmt: skip
    yield live_operation("Events of replicas, requests and scaling decisions, without end", f"{HIDDEN} 429")


_UPDATE: Schema = {
    "type": "object", "additionalProperties": False,
    "properties": {
        "model": {"type": ["string", "null"], "description": "Model of the new replicas; null keeps the one of now"},
        "arguments": {
            "type": ["array", "null"], "items": {"type": "string"},
            "description": "Options of `chairlift serve` for the new replicas, instead of all before; null keeps them",
        },
    },
}  # fmt: skip


def fleet_operations() -> Iterable[tuple[str, str, Schema]]:
    """Yield path, method and operation of each of these routes."""
    yield "/admin/fleet", "get", make_operation(
        "Replicas of the fleet, the last scaling decisions with their numbers, and what is being updated",
        schemas.FLEET, error_statuses="404",
    ) | ADMIN  # fmt: skip
    yield "/admin/fleet/update", "post", make_operation(
        "Replace the replicas one by one by those of another model or other options", schemas.FLEET, body=_UPDATE,
        status="202", error_statuses="404",
    ) | ADMIN  # fmt: skip
