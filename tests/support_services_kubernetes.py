"""FakeKubernetes: EndpointSlices of an API server with list, pages, watch, bookmarks and 410 Gone, for tests.

The `kubernetes` package drives it, too.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

API = "discovery.k8s.io/v1"
PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def endpoint(address: str, *, zone: str | None = None, **conditions: bool | None) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions or {"ready": True}, **({"zone": zone} if zone else {})}


def port(number: int, name: str = "http") -> dict[str, Any]:
    return {"name": name, "port": number, "protocol": "TCP"}


@dataclass
class FakeKubernetes:
    """The state of the API server; a test may change it."""

    token: str | None = None
    version: int = 100
    slices: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    oldest: int = 0
    """Oldest resource version from which a watch can begin."""
    page_size: int | None = None
    requests: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    list_fault: web.Response | None = None
    raw_event: str | None = None
    watch_ends_at_once: bool = False
    num_gone_watches: int = 0
    """Watches that are answered with status 410 before the next is served."""
    num_watches: int = 0
    url: str = ""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(
        self, name: str, endpoints: list[dict[str, Any]], *, ports: list[dict[str, Any]] | None = None,
        service: str = "llm", namespace: str = "prod",
    ) -> None:  # fmt: skip
        kind = "MODIFIED" if (namespace, name) in self.slices else "ADDED"
        body = {
            "apiVersion": API, "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
            "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
            "ports": [port(8000)] if ports is None else ports,
        }  # fmt: skip
        self.slices[namespace, name] = body
        await self._add_event(kind, body)

    async def delete(self, name: str, namespace: str = "prod") -> None:
        await self._add_event("DELETED", self.slices.pop((namespace, name)))

    async def bookmark(self) -> None:
        await self._add_event("BOOKMARK", {"apiVersion": API, "kind": "EndpointSlice", "metadata": {}})

    async def send_raw_event(self, text: str) -> None:
        async with self.changed:
            self.raw_event = text
            self.changed.notify_all()

    async def forget_events(self) -> None:
        """Forget all changes so far: a watch from an older version gets 410."""
        self.oldest = self.version
        self.events.clear()

    async def _add_event(self, kind: str, body: dict[str, Any]) -> None:
        async with self.changed:
            self.version += 1
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
            self.events.append((self.version, kind, body))
            self.changed.notify_all()

    # -- routes ----------------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        self.tokens.append(request.headers.get("authorization", ""))
        if self.token is not None and self.tokens[-1] != f"Bearer {self.token}":
            return status(401, "Unauthorized")
        namespace, label = request.match_info["namespace"], request.query.get("labelSelector", "")
        if request.query.get("watch") in {"1", "true", "True"}:
            return await self._watch(request, namespace, label)
        if self.list_fault is not None:
            return web.Response(status=self.list_fault.status, text=self.list_fault.text)
        found = [
            {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
            for (where, _), body in sorted(self.slices.items())
            if where == namespace and has_label(body, label)
        ]
        first = int(request.query.get("continue") or 0)
        size = min(int(request.query.get("limit") or len(found) or 1), self.page_size or len(found) or 1)
        metadata = {"resourceVersion": str(self.version)}
        if first + size < len(found):
            metadata["continue"] = str(first + size)
        items = found[first : first + size]
        return web.json_response({"apiVersion": API, "kind": "EndpointSliceList", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, namespace: str, label: str) -> web.StreamResponse:
        self.num_watches += 1
        version = int(request.query.get("resourceVersion") or self.version)
        if request.query.get("allowWatchBookmarks") != "true" and request.headers.get("user-agent", "")[:5] == "aioht":
            return status(400, "the source asks for bookmarks")
        if self.num_gone_watches:
            self.num_gone_watches -= 1
            return status(410, "too old resource version")
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        if version < self.oldest:
            await send(response, {"type": "ERROR", "object": status_body(410, "too old resource version")})
            return response
        loop = asyncio.get_running_loop()
        end = loop.time() + float(request.query.get("timeoutSeconds") or 60)
        while not self.watch_ends_at_once and loop.time() < end:
            for number, kind, body in list(self.events):
                if number > version:
                    version = number
                    if kind == "BOOKMARK" or (body["metadata"]["namespace"] == namespace and has_label(body, label)):
                        await send(response, {"type": kind, "object": body})
            if self.raw_event is not None:
                await response.write(self.raw_event.encode() + b"\n")
                self.raw_event = None
            async with self.changed:
                try:
                    async with asyncio.timeout(max(0.0, end - loop.time())):
                        await self.changed.wait_for(
                            lambda seen=version: self.version > seen or self.raw_event is not None
                        )
                except TimeoutError:
                    break
        return response


def has_label(body: dict[str, Any], selector: str) -> bool:
    name, _, value = selector.partition("=")
    return not selector or body["metadata"]["labels"].get(name) == value


async def send(response: web.StreamResponse, body: dict[str, Any]) -> None:
    await response.write(json.dumps(body).encode() + b"\n")


def status_body(code: int, message: str) -> dict[str, Any]:
    reason = {410: "Expired", 401: "Unauthorized"}.get(code, "BadRequest")
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "code": code}  # fmt: skip


def status(code: int, message: str) -> web.Response:
    return web.json_response(status_body(code, message), status=code)


@asynccontextmanager
async def fake_kubernetes(token: str | None = None) -> AsyncIterator[FakeKubernetes]:
    fake = FakeKubernetes(token)
    app = web.Application()
    app.router.add_get(PATH, fake.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = "http://{}:{}".format(*runner.addresses[0])
    try:
        yield fake
    finally:
        await runner.cleanup()
