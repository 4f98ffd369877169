"""run_stand_in(): a server on the loopback interface that records each request and answers from a script."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from record_clients.answer_formats import ANSWER_FORMATS, CREATED, MODEL
from record_clients.scripted_answer import TEXT, ScriptedAnswer, ScriptedCall, choose_answer

CONTEXT_TOKENS = 131_072
"""Tokens of the context that the lists of models say the model has."""

MAX_BODY_BYTES = 64 * 2**20


@dataclass
class StandInServer:
    """A running stand-in server.

    Attributes:
        url: its address, without a path.
        requests: the requests so far: method, path with the query, headers with names in lower case, and the
            body as parsed JSON, as a string, or None for an empty one.
        num_texts: how many texts without a call it has sent.
    """

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    num_texts: int = 0


@asynccontextmanager
async def run_stand_in(
    script: Sequence[ScriptedCall], texts: Sequence[str] = (TEXT,), port: int = 0
) -> AsyncIterator[StandInServer]:
    """Serve until the block ends, on a free port by default."""
    server = StandInServer()

    async def respond(request: web.Request) -> web.StreamResponse:
        body = _parse(await request.read())
        headers = {name.lower(): value for name, value in request.headers.items()}
        server.requests.append(
            {"method": request.method, "path": request.path_qs, "headers": headers, "body": body}
        )  # fmt: skip
        if request.path not in ANSWER_FORMATS or request.method != "POST" or not isinstance(body, dict):
            content = _other_content(request.path)
            return web.json_response(content or {"error": {"message": "no such route"}}, status=200 if content else 404)
        answer = choose_answer(script, body, texts, server.num_texts)
        server.num_texts += answer.call is None
        return await _send_answer(request, answer, is_streamed=body.get("stream", request.path == "/api/chat"))

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode("utf-8", errors="replace")


async def _send_answer(request: web.Request, answer: ScriptedAnswer, *, is_streamed: bool) -> web.StreamResponse:
    format_whole, format_parts = ANSWER_FORMATS[request.path]
    if not is_streamed:
        return web.json_response(format_whole(answer))
    kind = "application/x-ndjson" if request.path == "/api/chat" else "text/event-stream"
    response = web.StreamResponse(headers={"content-type": kind, "cache-control": "no-cache"})
    await response.prepare(request)
    for part in format_parts(answer):
        await response.write(part)
    await response.write_eof()
    return response


def _other_content(path: str) -> dict[str, Any] | None:
    """Return the answer of a route that generates nothing; None if there is no such route."""
    model = {
        "id": MODEL, "object": "model", "type": "model", "display_name": MODEL, "owned_by": "stand-in",
        "created": CREATED, "created_at": "2026-01-01T00:00:00Z", "max_model_len": CONTEXT_TOKENS,
        "max_input_tokens": CONTEXT_TOKENS,
    }  # fmt: skip
    details = {"family": "recorded", "families": ["recorded"], "format": "gguf", "parameter_size": "1B",
               "quantization_level": "F16", "parent_model": ""}  # fmt: skip
    tag = {"name": MODEL, "model": MODEL, "modified_at": "2026-01-01T00:00:00Z", "size": 1, "digest": "0" * 64,
           "details": details}  # fmt: skip
    info = {"general.architecture": "recorded", "recorded.context_length": CONTEXT_TOKENS}
    answers: dict[str, dict[str, Any]] = {
        "/v1/models": {"object": "list", "data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL},
        f"/v1/models/{MODEL}": model,
        "/v1/messages/count_tokens": {"input_tokens": 100},
        "/api/tags": {"models": [tag]},
        "/api/ps": {"models": [tag]},
        "/api/version": {"version": "0.13.0"},
        "/api/show": {"details": details, "model_info": info, "capabilities": ["completion", "tools"], "template": ""},
    }
    return answers.get(path)
