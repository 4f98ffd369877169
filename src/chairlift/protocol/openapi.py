"""make_document and make_operation: describe an HTTP service in OpenAPI 3.1."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chairlift.core.version import __version__
from chairlift.protocol import response_schemas as schemas
from chairlift.protocol.anthropic.message_schema import ERROR as ANTHROPIC_ERROR
from chairlift.protocol.request_examples import add_examples
from chairlift.protocol.request_fields import POOLING_ROUTES, Effect, Field
from chairlift.protocol.router_headers import MAX_TIMEOUT_MS

Schema = dict[str, Any]

ERROR_DESCRIPTIONS: Mapping[str, str] = {
    "400": "The request is invalid; the error names the field", "401": "The key is missing or unknown",
    "403": "The key, the host name, or a page of another origin has no permission",
    "404": "There is no such model or request", "405": "The route has other methods", "408": "A timeout has passed",
    "409": "The request resumes from tokens of another model",
    "413": "The body is too large", "415": "The body is not plain JSON",
    "429": "A limit is reached; Retry-After has the seconds to wait",
    "500": "The request failed in the engine", "502": "Every attempt at a replica failed",
    "503": "The server accepts no requests now", "504": "A replica did not respond in time",
}  # fmt: skip

ANY, BODY = "401 403 405", "400 404 408 413 415 503"
"""Error statuses of every operation, and of one with a body."""

CONNECTIONS = (
    "Responses have a header x-request-id. It is the request's own one if that is a valid id. A request that is not "
    "valid HTTP/1.1, has an unknown method, arrives too slowly or has too large a header block is rejected before it "
    "reaches an operation, with 400, 405, 408 or 431 and the error object; then the connection closes. A streamed "
    "response ends with `data: [DONE]`, or with an event `error` whose data is the error object and `retryable`."
)

REQUEST_ID = {"x-request-id": {"description": "Id of the request", "required": True, "schema": schemas.TEXT}}
IGNORED = {"x-ignored-parameters": {"description": "Names of fields that had no effect", "schema": schemas.TEXT}}
HEADERS: Mapping[str, Mapping[str, Schema]] = {
    "401": {"www-authenticate": {"description": "Bearer", "required": True, "schema": schemas.TEXT}},
    "405": {"allow": {"description": "The methods of the route", "required": True, "schema": schemas.TEXT}},
    "429": {
        "retry-after": {
            "description": "Seconds to wait",
            "required": True,
            "schema": {"type": "integer", "minimum": 0},
        },
        "retry-after-ms": {"description": "Milliseconds", "schema": {"type": "integer", "minimum": 0}},
    },
    "503": {
        "retry-after": {
            "description": "Seconds, if a retry may help",
            "schema": {"type": "integer", "minimum": 0},
        },
        "x-should-retry": {"description": "false if a retry cannot help", "schema": schemas.TEXT},
    },
}
"""Headers of error responses, in addition to the request's id."""

TIMEOUT: Schema = {
    "name": "x-request-timeout-ms", "in": "header", "required": False,
    "description": "Milliseconds that the request may take",
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS},
}  # fmt: skip
PROMPT_OR_MESSAGES: Schema = {
    "anyOf": [
        {"required": [one], "properties": {one: {"type": kind}, other: {"type": "null"}}}
        for one, kind, other in (("prompt", "string", "messages"), ("messages", "array", "prompt"))
    ]
}

EVENTS: Schema = {"text/event-stream": {"schema": {"type": ["string", "object"]}}}
"""Content of a stream: an event is its data, or an object with the event's name and its data."""

ADMIN: Schema = {"security": [{"key": []}]}
"""What an operation for administrators has in addition."""

LIVE: Schema = {
    "security": [{"key": []}, {}],
    "description": "Needs an admin key. A server without keys and tokens that listens on a loopback address sends it "
    "without one, to its own page and to programs at localhost.",
}
"""What an operation with live data has in addition."""


def make_document(
    operations: Iterable[tuple[str, str, Schema]], description: str, names: Sequence[str] = ()
) -> Schema:  # fmt: skip
    """Return the OpenAPI 3.1 document of a service with these operations: path, method and description of each.

    Examples of bodies have the first of the model's `names`.
    """
    paths: dict[str, Schema] = {}
    for path, method, operation in operations:
        paths.setdefault(path, {})[method] = operation
    add_examples(paths, names)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Chairlift", "version": __version__, "description": description},
        "paths": paths,
        "components": {
            "schemas": {"Error": schemas.ERROR, "AnthropicError": ANTHROPIC_ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }  # fmt: skip


def lifecycle_operations() -> Iterable[tuple[str, str, Schema]]:
    """Yield the operations of health probes, which need no key."""
    yield "/livez", "get", make_operation("Whether the process is alive", schemas.ALIVE, is_open=True)
    for path, summary, schema in (
        ("/readyz", "Whether the server accepts requests", schemas.READY),
        ("/health", "Whether the server accepts requests, and why not", schemas.HEALTH),
    ):  # fmt: skip
        yield path, "get", make_operation(summary, schema, unready=schema, is_open=True)
    yield "/ping", "get", make_operation(
        "Whether the server accepts requests, for SageMaker", kind="text/plain", unready=schemas.TEXT, is_open=True
    )  # fmt: skip


def document_operations() -> Iterable[tuple[str, str, Schema]]:
    """Yield the operations that describe a service."""
    yield "/version", "get", make_operation("Version of Chairlift", schemas.VERSION)
    yield "/metrics", "get", make_operation("Metrics for Prometheus", kind="text/plain")
    yield "/docs", "get", make_operation("This document as a page", kind="text/html")
    yield "/openapi.json", "get", make_operation("This document", {"type": "object"})


def pooling_operations(names: Sequence[str], **options: Any) -> Iterable[tuple[str, str, Schema]]:
    """Yield the operations of embeddings and scores; `options` are arguments of make_operation."""
    responses = (
        ("Turn texts into embeddings", schemas.EMBEDDINGS),
        ("Compare texts by the cosine of their embeddings", schemas.SCORES),
        ("Rank documents by the cosine of their embedding and the query's", schemas.RERANKED),
    )
    for (path, fields), (summary, schema) in zip(POOLING_ROUTES.items(), responses, strict=True):
        yield path, "post", make_operation(summary, schema, body=body_schema(fields, names), also=EVENTS, **options)


def live_operation(summary: str, error_statuses: str) -> tuple[str, str, Schema]:
    """Return the path, method and operation of a stream of live data."""
    operation = make_operation(summary, kind="text/event-stream", error_statuses=error_statuses)
    return "/admin/live", "get", operation | LIVE


def make_operation(
    summary: str, schema: Schema | None = None, *, body: Schema | None = None, also: Schema | None = None,
    kind: str = "application/json", parameters: list[Schema] | None = None, status: str = "200",
    unready: Schema | None = None, links: Schema | None = None, name: str = "", error_statuses: str = "",
    is_open: bool = False, error: str = "Error",
) -> Schema:  # fmt: skip
    """Describe an operation; `schema` is its response's, None for a text response.

    `error_statuses` are in addition to those of every operation, and of every one with a body. An operation with
    `is_open` needs no key; `error` names the schema of its errors.
    """
    success: Schema = {"description": "Done", "headers": REQUEST_ID | (IGNORED if body else {})}
    success["content"] = {kind: {"schema": schema or schemas.TEXT}, **(also or {})}
    if links is not None:
        success["links"] = links
    error_content = _json({"$ref": f"#/components/schemas/{error}"})
    codes = {*ANY.split(), *error_statuses.split(), *(BODY.split() if body else ())} - (
        {"401", "403"} if is_open else set()
    )
    responses: Schema = {status: success} | {
        code: {
            "description": ERROR_DESCRIPTIONS[code],
            "headers": {**REQUEST_ID, **HEADERS.get(code, {})},
            "content": error_content,
        }
        for code in sorted(codes)
    }  # fmt: skip
    if unready is not None:
        responses["503"] = {"description": "Not ready", "headers": REQUEST_ID, "content": {kind: {"schema": unready}}}
    operation: Schema = {"summary": summary, "responses": responses} | ({"security": []} if is_open else {})
    if name:
        operation["operationId"] = name
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    if parameters:
        operation["parameters"] = parameters
    return operation


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def path_parameter(name: str, values: Sequence[str] = ()) -> Schema:
    """Return a parameter in the path, one of `values` if there are any."""
    schema: Schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema | ({"enum": [*values]} if values else {})}


def body_schema(fields: Mapping[str, Field], names: Sequence[str]) -> Schema:
    """Return the schema of a body; null is the same as absent in every field that is not required."""
    properties: Schema = {}
    for name, field in fields.items():
        schema = field.schema | ({"enum": [*names, ""]} if name == "model" and names else {})
        if not field.required and field.effect is not Effect.REFUSED:
            schema = _or_null(schema)
        properties[name] = schema | ({"description": field.help} if field.help else {})
    required = [name for name, field in fields.items() if field.required]
    return {"type": "object", "properties": properties, "required": required}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}
