"""Fleets in tests: real replica applications over fake engines, and a router in front of them, in one event loop."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from chairlift.engine.step_plan import StepPlan
from chairlift.llm.text_service import TextService
from chairlift.observability.tracing.tracer import Tracer
from chairlift.router.endpoint import ReplicaKind
from chairlift.server.app import server_app
from chairlift.server.replica import Replica
from chairlift.web.auth.api_keys import KeyRing
from chairlift.web.auth.credentials import Credentials
from support_config import make_server_config
from support_router import (
    CHAT,
    HELLO,
    Connection,
    ReceivedRequest,
    RunningRouter,
    Script,
    ScriptedReplica,
    running_router,
    scripted,
    serving,
)
from support_server import MODEL
from support_services import fake_service


@asynccontextmanager
async def served_replica(
    keys: KeyRing | None = None,
    hook: Callable[[StepPlan, str], None] | None = None,
    tracer: Tracer | None = None,
    service: TextService | None = None,
    **options: Any,
) -> AsyncIterator[str]:
    """Serve a replica over a fake engine, by default one with this hook; yields its URL."""
    replica = Replica(make_server_config(MODEL, **options), tracer)

    async def drain() -> None:
        replica.lifecycle.drain()

    replica.attach_service(service or fake_service(hook=hook), lambda: None, 2048)
    app = server_app(replica, Credentials(keys or KeyRing()), drain)
    assert app.batches is not None
    try:
        async with serving(app.asgi) as url:
            yield url
    finally:
        await app.batches.close()
        await replica.close()


@dataclass(slots=True)
class RoutedFleet:
    """A router over replicas, with a client of the router.

    Attributes:
        running: the router.
        http: the client.
        replicas: the replicas, for their requests.
    """

    running: RunningRouter
    http: httpx.AsyncClient
    replicas: list[ScriptedReplica]

    async def post(self, body: Any = HELLO, path: str = CHAT, **headers: str) -> httpx.Response:
        """POST an object as JSON, or bytes as they are."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, bytes):
            return await self.http.post(path, content=body, headers=names)
        return await self.http.post(path, json=body, headers=names)

    def received(self, path: str | None = None) -> list[ReceivedRequest]:
        """Return what all replicas have received, for one path only if it is given."""
        requests = [request for replica in self.replicas for request in replica.requests]
        return [request for request in requests if path in (None, request.target.partition("?")[0])]


@asynccontextmanager
async def routed(*scripts: Script, **options: Any) -> AsyncIterator[RoutedFleet]:
    """Run a router over scripted replicas of another server than Chairlift."""
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(scripted(script)) for script in scripts]
        running = await stack.enter_async_context(running_router([each.url for each in replicas], **options))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, timeout=10))
        yield RoutedFleet(running, http, replicas)
        assert not running.router.open_proxies
        assert all(each.open_requests == 0 for each in running.router.replicas.statuses(0.0))


@asynccontextmanager
async def replica_and_router(
    keys: KeyRing | None = None, **options: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Serve a replica, and a router in front of another one; yields a client of each."""
    async with (
        served_replica(keys, **options) as direct_url, served_replica(**options) as url,
        running_router([url], keys=keys, kind=ReplicaKind.CHAIRLIFT, models=(MODEL,), **_http(options)) as running,
        httpx.AsyncClient(base_url=direct_url, timeout=10) as direct,
        httpx.AsyncClient(base_url=running.url, timeout=10) as through,
    ):  # fmt: skip
        yield direct, through


def _http(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"http": make_server_config(MODEL, **options).http} if options else {}


async def echo(connection: Connection, request: ReceivedRequest) -> None:
    """Answer with what was received."""
    await connection.respond({
        "method": request.method, "target": request.target, "body": request.body.decode("latin-1"),
        "type": request.headers.get("content-type"),
    })  # fmt: skip


async def complete(connection: Connection, request: ReceivedRequest) -> None:
    """Answer a generation request, with the model that was asked for."""
    model = json.loads(request.body).get("model")
    await connection.respond({"id": "x", "model": model, "choices": [], "served_by": request.headers["host"]})
