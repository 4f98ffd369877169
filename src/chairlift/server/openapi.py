"""DocsRoutes: serves /openapi.json and /docs, built from the tables that parse the requests."""

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
from chairlift.web.middleware import send_bytes

Schema = dict[str, Any]

_TEXT = schemas.TEXT

REFUSALS: Mapping[str, str] = {
    "400": "The request cannot be: the error names the field", "401": "No key, or none that is known",
    "403": "Not for this key, or not for a browser page",
    "404": "No such model or request", "405": "Another method", "408": "It took too long",
    "413": "The body is too large", "415": "The body is no plain JSON", "429": "Come later: Retry-After says when",
    "500": "The request failed inside the model", "503": "No request is served now",
}  # fmt: skip

ANY, BODY, SERVED, WORK, ADMIN = "401 405", "400 404 408 413 415 503", "503", "429 500", "403 404"
"""Statuses of REFUSALS: of any operation, of one with a body, of one that needs the model, of a generation, of an
admin operation."""

CONNECTIONS = (
    "Answers have a header x-request-id; it is the one that the request has, if that can be an id. What is no "
    "HTTP/1.1, has a method that HTTP does not know, comes too slowly or has too large a head is refused before it is "
    "any of these operations, with 400, 405, 408 or 431, the error object and an end of the connection. A streamed "
    "answer ends with `data: [DONE]`, or with an event `error` whose data is the error object."
)

_REQUEST_ID = {"x-request-id": {"description": "Of the request", "required": True, "schema": _TEXT}}
_IGNORED = {"x-ignored-parameters": {"description": "Names of fields that had no effect", "schema": _TEXT}}
HEADERS: Mapping[str, Mapping[str, Schema]] = {
    "401": {"www-authenticate": {"description": "Bearer", "required": True, "schema": _TEXT}},
    "405": {"allow": {"description": "The methods of the route", "required": True, "schema": _TEXT}},
    "429": {
        "retry-after": {"description": "Seconds", "required": True, "schema": {"type": "integer", "minimum": 0}},
        "retry-after-ms": {"description": "Milliseconds", "schema": {"type": "integer", "minimum": 0}},
    },
    "503": {
        "retry-after": {"description": "Seconds, where it may help", "schema": {"type": "integer", "minimum": 0}},
        "x-should-retry": {"description": "false where it may not", "schema": _TEXT},
    },
}
"""Headers of error responses, besides the request's id."""

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
    """Serve /openapi.json and /docs."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def schema(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the OpenAPI document."""
        await send_bytes(send, self._document)

    async def page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a page for people; it loads nothing from other servers."""
        await send_bytes(send, self._page, kind=b"text/html; charset=utf-8")

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
        "Answer a conversation", schemas.CHAT, body=_body(CHAT, names), also=events, parameters=[_TIMEOUT],
        links=_TIMELINE, refused=WORK,
    )  # fmt: skip
    yield "/v1/completions", "post", _operation(
        "Complete a prompt", schemas.COMPLETION, body=_body(COMPLETION, names), also=events, parameters=[_TIMEOUT],
        links=_TIMELINE, refused=WORK,
    )  # fmt: skip
    yield "/v1/models", "get", _operation("Name the models", schemas.MODELS, refused=SERVED, links={
        "model": {"operationId": "model", "parameters": {"id": "$response.body#/data/0/id"}},
    })  # fmt: skip
    yield "/v1/models/{id}", "get", _operation(
        "Tell of one model", schemas.MODEL, parameters=[_in_path("id", names)], name="model", refused=f"404 {SERVED}"
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
    yield "/livez", "get", _operation("Whether the process answers", schemas.ALIVE, is_open=True)
    for path, summary, schema in (
        ("/readyz", "Whether it serves", schemas.READY), ("/health", "Whether it serves, and why not", schemas.HEALTH),
    ):  # fmt: skip
        yield path, "get", _operation(summary, schema, unready=schema, is_open=True)
    yield "/metrics", "get", _operation("Metrics for Prometheus", kind="text/plain")
    yield "/load", "get", _operation("How busy it is", schemas.LOAD)
    yield "/docs", "get", _operation("This, for people", kind="text/html")
    yield "/openapi.json", "get", _operation("This document", {"type": "object"})
    yield (
        "/admin/drain",
        "post",
        _operation("Finish what is open, and leave", schemas.READY, status="202", refused=ADMIN) | _ADMIN,
    )
    yield "/admin/state", "get", _operation(
        "Scheduler and cache", schemas.STATE, refused=f"{ADMIN} {SERVED}"
    ) | _ADMIN  # fmt: skip
    yield "/admin/requests/{id}", "get", _operation(
        "How a request went", schemas.REQUEST, parameters=[_in_path("id")], name="timeline",
        refused=f"{ADMIN} {SERVED}",
    ) | _ADMIN  # fmt: skip


_ADMIN: Schema = {"security": [{"key": []}]}
_TIMELINE: Schema = {
    "timeline": {"operationId": "timeline", "parameters": {"id": "$response.header.x-request-id"}},
}


def _operation(
    summary: str, schema: Schema | None = None, *, body: Schema | None = None, also: Schema | None = None,
    kind: str = "application/json", parameters: list[Schema] | None = None, status: str = "200",
    unready: Schema | None = None, links: Schema | None = None, name: str = "", refused: str = "",
    is_open: bool = False,
) -> Schema:  # fmt: skip
    """Describe an operation; `schema` is its response's, text where it is None.

    `refused` are its statuses besides those of any operation, and of any with a body. An operation that `is_open`
    needs no key.
    """
    success: Schema = {"description": "Done", "headers": _REQUEST_ID | (_IGNORED if body else {})}
    success["content"] = {kind: {"schema": schema or _TEXT}, **(also or {})}
    if links is not None:
        success["links"] = links
    error = _json({"$ref": "#/components/schemas/Error"})
    codes = {*ANY.split(), *refused.split(), *(BODY.split() if body else ())} - ({"401"} if is_open else set())
    responses: Schema = {status: success} | {
        code: {"description": REFUSALS[code], "headers": {**_REQUEST_ID, **HEADERS.get(code, {})}, "content": error}
        for code in sorted(codes)
    }
    if unready is not None:
        responses["503"] = {"description": "Not now", "headers": _REQUEST_ID, "content": _json(unready)}
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


def _in_path(name: str, known: Sequence[str] = ()) -> Schema:
    schema: Schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema | ({"enum": [*known]} if known else {})}


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
    """Return the document as a page."""
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
        f"<p>The same for programs: <a href=/openapi.json>openapi.json</a></p>{''.join(sections)}</html>"
    )
