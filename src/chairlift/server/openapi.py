"""DocsRoutes: serves /openapi.json, /docs and /version; the first two come from the request tables."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from typing import Any

import orjson

from chairlift import __version__
from chairlift.protocol import response_schemas as schemas
from chairlift.protocol.request_fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Effect, Field
from chairlift.server.replica import MAX_TIMEOUT_MS, Replica
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.middleware import send_bytes, send_object

Schema = dict[str, Any]

_TEXT = schemas.TEXT

ERROR_DESCRIPTIONS: Mapping[str, str] = {
    "400": "The request is invalid; the error names the field", "401": "The key is missing or unknown",
    "403": "The key, the host name, or a page of another origin has no permission",
    "404": "There is no such model or request", "405": "The route has other methods", "408": "A timeout has passed",
    "413": "The body is too large", "415": "The body is not plain JSON",
    "429": "A limit is reached; Retry-After has the seconds to wait",
    "500": "The request failed in the engine", "503": "The server accepts no requests now",
}  # fmt: skip

ANY, BODY, SERVED, WORK, ADMIN = "401 403 405", "400 404 408 413 415 503", "503", "429 500", "404"
"""Error statuses of every operation, of one with a body, of one that needs the model, of a generation, of an admin
operation."""

CONNECTIONS = (
    "Responses have a header x-request-id. It is the request's own one if that is a valid id. A request that is not "
    "valid HTTP/1.1, has an unknown method, arrives too slowly or has too large a header block is rejected before it "
    "reaches an operation, with 400, 405, 408 or 431 and the error object; then the connection closes. A streamed "
    "response ends with `data: [DONE]`, or with an event `error` whose data is the error object."
)

_REQUEST_ID = {"x-request-id": {"description": "Id of the request", "required": True, "schema": _TEXT}}
_IGNORED = {"x-ignored-parameters": {"description": "Names of fields that had no effect", "schema": _TEXT}}
HEADERS: Mapping[str, Mapping[str, Schema]] = {
    "401": {"www-authenticate": {"description": "Bearer", "required": True, "schema": _TEXT}},
    "405": {"allow": {"description": "The methods of the route", "required": True, "schema": _TEXT}},
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
        "x-should-retry": {"description": "false if a retry cannot help", "schema": _TEXT},
    },
}
"""Headers of error responses, in addition to the request's id."""

_TIMEOUT: Schema = {
    "name": "x-request-timeout-ms", "in": "header", "required": False,
    "description": "Milliseconds that the request may take",
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS},
}  # fmt: skip
_PROMPT_OR_MESSAGES: Schema = {
    "anyOf": [
        {"required": [one], "properties": {one: {"type": kind}, other: {"type": "null"}}}
        for one, kind, other in (("prompt", "string", "messages"), ("messages", "array", "prompt"))
    ]
}


class DocsRoutes:
    """The routes /openapi.json, /docs and /version."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def schema(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the OpenAPI document."""
        await send_bytes(send, self._document)

    async def page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the document as an HTML page, which loads nothing from other servers."""
        await send_bytes(send, self._page, kind=b"text/html; charset=utf-8")

    async def version(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the version of Chairlift."""
        await send_object(send, {"version": __version__})

    @cached_property
    def _document(self) -> bytes:
        return orjson.dumps(document(self._replica.config.served_names))

    @cached_property
    def _page(self) -> bytes:
        return page(document()).encode()


def document(names: Sequence[str] = ()) -> Schema:
    """Return the OpenAPI 3.1 document of a server that serves its model under these names."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Chairlift", "version": __version__, "description": CONNECTIONS},
        "paths": {path: {method: operation} for path, method, operation in _operations(names)},
        "components": {
            "schemas": {"Error": schemas.ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }  # fmt: skip


def _operations(names: Sequence[str]) -> Iterable[tuple[str, str, Schema]]:
    events = {"text/event-stream": {"schema": _TEXT}}
    yield "/v1/chat/completions", "post", _operation(
        "Generate the next message of a conversation", schemas.CHAT, body=_body(CHAT, names), also=events,
        parameters=[_TIMEOUT], links=_TIMELINE, error_statuses=WORK,
    )  # fmt: skip
    yield "/v1/completions", "post", _operation(
        "Complete a prompt", schemas.COMPLETION, body=_body(COMPLETION, names), also=events, parameters=[_TIMEOUT],
        links=_TIMELINE, error_statuses=WORK,
    )  # fmt: skip
    yield "/v1/models", "get", _operation("List the models", schemas.MODELS, error_statuses=SERVED, links={
        "model": {"operationId": "model", "parameters": {"id": "$response.body#/data/0/id"}},
    })  # fmt: skip
    yield "/v1/models/{id}", "get", _operation(
        "Describe one model", schemas.MODEL, parameters=[_in_path("id", names)], name="model",
        error_statuses=f"404 {SERVED}",
    )  # fmt: skip
    yield "/tokenize", "post", _operation(
        "Turn text into token ids", schemas.TOKENIZED, body=_body(TOKENIZE, names) | _PROMPT_OR_MESSAGES,
        links={"text": {"operationId": "text", "requestBody": {"tokens": "$response.body#/tokens"}}},
    )  # fmt: skip
    yield (
        "/detokenize",
        "post",
        _operation("Turn token ids into text", schemas.DETOKENIZED, body=_body(DETOKENIZE, names), name="text"),
    )
    yield (
        "/tokenizer_info",
        "get",
        _operation("Spelling of the named tokens", schemas.TOKENIZER_INFO, error_statuses=SERVED),
    )
    yield "/livez", "get", _operation("Whether the process is alive", schemas.ALIVE, is_open=True)
    for path, summary, schema in (
        ("/readyz", "Whether the server accepts requests", schemas.READY),
        ("/health", "Whether the server accepts requests, and why not", schemas.HEALTH),
    ):  # fmt: skip
        yield path, "get", _operation(summary, schema, unready=schema, is_open=True)
    yield "/ping", "get", _operation(
        "Whether the server accepts requests, for SageMaker", kind="text/plain", unready=_TEXT, is_open=True
    )  # fmt: skip
    yield "/version", "get", _operation("Version of Chairlift", schemas.VERSION)
    yield "/metrics", "get", _operation("Metrics for Prometheus", kind="text/plain")
    yield "/load", "get", _operation("Load of the server", schemas.LOAD)
    yield "/docs", "get", _operation("This document as a page", kind="text/html")
    yield "/openapi.json", "get", _operation("This document", {"type": "object"})
    yield (
        "/admin/drain",
        "post",
        _operation("Finish the open requests, then stop", schemas.READY, status="202", error_statuses=ADMIN) | _ADMIN,
    )
    yield "/admin/state", "get", _operation(
        "State of the scheduler and the cache", schemas.STATE, error_statuses=f"{ADMIN} {SERVED}"
    ) | _ADMIN  # fmt: skip
    yield "/admin/requests/{id}", "get", _operation(
        "Timeline of a request", schemas.REQUEST, parameters=[_in_path("id")], name="timeline",
        error_statuses=f"{ADMIN} {SERVED}",
    ) | _ADMIN  # fmt: skip


_ADMIN: Schema = {"security": [{"key": []}]}
_TIMELINE: Schema = {
    "timeline": {"operationId": "timeline", "parameters": {"id": "$response.header.x-request-id"}},
}


def _operation(
    summary: str, schema: Schema | None = None, *, body: Schema | None = None, also: Schema | None = None,
    kind: str = "application/json", parameters: list[Schema] | None = None, status: str = "200",
    unready: Schema | None = None, links: Schema | None = None, name: str = "", error_statuses: str = "",
    is_open: bool = False,
) -> Schema:  # fmt: skip
    """Describe an operation; `schema` is its response's, None for a text response.

    `error_statuses` are in addition to those of every operation, and of every one with a body. An operation with
    `is_open` needs no key.
    """
    success: Schema = {"description": "Done", "headers": _REQUEST_ID | (_IGNORED if body else {})}
    success["content"] = {kind: {"schema": schema or _TEXT}, **(also or {})}
    if links is not None:
        success["links"] = links
    error = _json({"$ref": "#/components/schemas/Error"})
    codes = {*ANY.split(), *error_statuses.split(), *(BODY.split() if body else ())} - (
        {"401", "403"} if is_open else set()
    )
    responses: Schema = {status: success} | {
        code: {
            "description": ERROR_DESCRIPTIONS[code],
            "headers": {**_REQUEST_ID, **HEADERS.get(code, {})},
            "content": error,
        }
        for code in sorted(codes)
    }  # fmt: skip
    if unready is not None:
        responses["503"] = {"description": "Not ready", "headers": _REQUEST_ID, "content": {kind: {"schema": unready}}}
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


def _in_path(name: str, values: Sequence[str] = ()) -> Schema:
    schema: Schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema | ({"enum": [*values]} if values else {})}


def _body(fields: Mapping[str, Field], names: Sequence[str]) -> Schema:
    """Return the schema of a body; null is the same as absent in every field that is not required."""
    properties: Schema = {}
    for name, field in fields.items():
        schema = field.schema | ({"enum": [*names]} if name == "model" and names else {})
        if not field.required and field.effect is not Effect.REFUSED:
            schema = _or_null(schema)
        properties[name] = schema | ({"description": field.help} if field.help else {})
    required = [name for name, field in fields.items() if field.required]
    return {"type": "object", "properties": properties, "required": required}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def page(openapi: Schema) -> str:
    """Return the document as an HTML page."""
    sections = []
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            sections.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
            )
            content = operation.get("requestBody", {}).get("content", {})
            properties = content.get("application/json", {}).get("schema", {}).get("properties", {})
            rows = "".join(
                f"<tr><td><code>{escape(name)}</code></td><td>{escape(schema.get('description', ''))}</td></tr>"
                for name, schema in properties.items()
            )
            sections.append(f"<table>{rows}</table>" if rows else "")
    style = "body{font:16px system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}td{padding:.1rem .8rem .1rem 0}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Chairlift</title><style>{style}</style>"
        f"<h1>Chairlift {escape(openapi['info']['version'])}</h1>"
        f"<p>For programs: <a href=/openapi.json>openapi.json</a></p>{''.join(sections)}</html>"
    )
