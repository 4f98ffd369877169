"""FakeKubernetes: an API server with pages, watches, 410 Gone, 409 Conflict, merge patches, scale and roles, for tests.

The `kubernetes` package drives it, too. What controllers do with its objects is in support_kubernetes_controllers.py.
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from support_kubernetes_objects import (
    COST,
    ROOTS,
    USER,
    apply_merge_patch,
    has_labels,
    is_allowed,
    status,
    status_body,
    wants_patch,
)  # fmt: skip

Key = tuple[str, str, str]
"""Plural, namespace and name of an object."""


def endpoint(address: str, *, zone: str | None = None, **conditions: bool | None) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions or {"ready": True}, **({"zone": zone} if zone else {})}


def port(number: int, name: str = "http") -> dict[str, Any]:
    return {"name": name, "port": number, "protocol": "TCP"}


@dataclass
class FakeKubernetes:
    """The state of the API server; a test may change it."""

    token: str | None = None
    version: int = 100
    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    """Resource version, plural ("" for a bookmark), type and object of each change."""
    oldest: int = 0
    """Oldest resource version from which a watch can begin."""
    page_size: int | None = None
    num_gone_pages: int = 0
    """Pages after the first that are answered with status 410 before the next is served."""
    requests: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    rules: Sequence[dict[str, Any]] | None = None
    """Rules of the Role under which all calls run; None permits everything."""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """Verb, API group and resource of each call."""
    fault: Callable[[web.Request], Any] | None = None
    """May return a response for a request, "cut" (before it has an effect), "lose" (after it has one) or "hang"."""
    missing_apis: set[str] = field(default_factory=set)
    """API groups that are not installed."""
    list_fault: web.Response | None = None
    raw_event: str | None = None
    watch_ends_at_once: bool = False
    num_gone_watches: int = 0
    """Watches that are answered with status 410 before the next is served."""
    num_watches: int = 0
    open_watches: list[web.Request] = field(default_factory=list)
    now: float = 1_800_000_000.0
    """Seconds since 1970; each new object is one second younger than the one before."""
    url: str = ""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    # -- objects ---------------------------------------------------------------------------------------------------

    async def put(
        self, name: str, endpoints: list[dict[str, Any]], *, ports: list[dict[str, Any]] | None = None,
        service: str = "llm", namespace: str = "prod",
    ) -> None:  # fmt: skip
        """Put an EndpointSlice."""
        await self.put_object("endpointslices", {
            "addressType": "IPv4", "endpoints": endpoints, "ports": [port(8000)] if ports is None else ports,
            "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        })  # fmt: skip

    async def put_object(self, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create or change an object and tell the watches; fields that the API server owns are filled in."""
        _, api_version, kind = ROOTS[plural]
        body = {"apiVersion": api_version, "kind": kind, **copy.deepcopy(body)}
        metadata = body["metadata"]
        key = plural, metadata.setdefault("namespace", "default"), metadata["name"]
        old = self.objects.get(key)
        if old is None:
            self.now += 1.0
            created = datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            metadata |= {"uid": f"{self.version:08d}-{key[2]}", "creationTimestamp": created, "generation": 1}
        else:
            for name in ("uid", "creationTimestamp"):
                metadata[name] = old["metadata"][name]
            is_new = old.get("spec") != body.get("spec")
            metadata["generation"] = old["metadata"]["generation"] + is_new
            if old == {**body, "metadata": {**metadata, "resourceVersion": old["metadata"]["resourceVersion"]}}:
                return old
        self.objects[key] = await self._add_event(plural, "ADDED" if old is None else "MODIFIED", body)
        return self.objects[key]

    async def delete(self, name: str, namespace: str = "prod", plural: str = "endpointslices") -> None:
        await self._add_event(plural, "DELETED", self.objects.pop((plural, namespace, name)))

    def find(self, plural: str, namespace: str = "default") -> list[dict[str, Any]]:
        """Return the objects of a kind, by name."""
        return [body for key, body in sorted(self.objects.items()) if key[:2] == (plural, namespace)]

    async def bookmark(self) -> None:
        await self._add_event("", "BOOKMARK", {"apiVersion": "v1", "kind": "Bookmark", "metadata": {}})

    async def send_raw_event(self, text: str) -> None:
        async with self.changed:
            self.raw_event = text
            self.changed.notify_all()

    def cut_watches(self) -> None:
        """Break the connection of each watch."""
        while self.open_watches:
            if (transport := self.open_watches.pop().transport) is not None:
                transport.abort()

    async def forget_events(self) -> None:
        """Forget all changes so far: a watch from an older version gets 410."""
        self.oldest = self.version
        self.events.clear()

    async def _add_event(self, plural: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.changed:
            self.version += 1
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
            self.events.append((self.version, plural, kind, body))
            self.changed.notify_all()
        return body

    # -- routes ----------------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        fault = None if self.fault is None else self.fault(request)
        if isinstance(fault, web.StreamResponse):
            return fault
        if fault == "hang":
            await asyncio.sleep(30)
        if fault == "cut":
            request.transport.close()  # type: ignore[union-attr]
            return web.Response()
        response = await self._answer(request)
        if fault == "lose":
            request.transport.close()  # type: ignore[union-attr]
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        self.tokens.append(request.headers.get("authorization", ""))
        if self.token is not None and self.tokens[-1] != f"Bearer {self.token}":
            return status(401, "Unauthorized")
        root, _, path = request.path.partition("/namespaces/")
        namespace, plural, name, subresource = [*path.split("/"), "", "", ""][:4]
        if plural not in ROOTS or ROOTS[plural][0] != root or root.split("/")[-2] in self.missing_apis:
            return web.Response(status=404, text="404 page not found\n")
        is_watch = request.query.get("watch") in {"1", "true", "True"}
        verb = {"PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}.get(
            request.method, "get" if name else "watch" if is_watch else "list"
        )
        group = "" if root == "/api/v1" else root.split("/")[2]
        resource = f"{plural}/{subresource}" if subresource else plural
        self.calls.append((verb, group, resource))
        if self.rules is not None and not is_allowed(self.rules, verb, group, resource):
            return status(
                403, f'{resource} "{name}" is forbidden: User "{USER}" cannot {verb} resource "{resource}" in '
                f'API group "{group}" in the namespace "{namespace}"',
            )  # fmt: skip
        if is_watch:
            return await self._watch(request, plural, namespace)
        if not name:
            return self._list(request, plural, namespace)
        return await self._answer_object(request, (plural, namespace, name), subresource)

    def _list(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        if self.list_fault is not None:
            return web.Response(status=self.list_fault.status, text=self.list_fault.text)
        query = request.query
        if query.get("continue") and query.get("resourceVersion"):
            return status(400, "specifying resource version is not allowed when using continue")
        if query.get("continue") and self.num_gone_pages:
            self.num_gone_pages -= 1
            return status(410, "The provided continue parameter is too old")
        found = [body for body in self.find(plural, namespace) if has_labels(body, query.get("labelSelector", ""))]
        first = int(query.get("continue") or 0)
        limit = 0 if query.get("resourceVersion") == "0" else int(query.get("limit") or 0)  # as older API servers do
        size = min(limit or len(found) or 1, self.page_size or len(found) or 1)
        metadata = {"resourceVersion": str(self.version)}
        if first + size < len(found):
            metadata["continue"] = str(first + size)
        _, api_version, kind = ROOTS[plural]
        items = found[first : first + size]
        return web.json_response({
            "apiVersion": api_version, "kind": f"{kind}List", "metadata": metadata, "items": items,
        })  # fmt: skip

    async def _answer_object(self, request: web.Request, key: Key, subresource: str) -> web.Response:
        if (old := self.objects.get(key)) is None:
            return status(404, f'{key[0]} "{key[2]}" not found')
        shown = old if subresource != "scale" else scale_of(old)
        if request.method == "GET":
            return web.json_response(shown)
        if request.method == "DELETE":
            await self.terminate(key)
            return web.json_response(self.objects.get(key, old))
        if request.method == "PATCH" and not wants_patch(request.content_type):
            return status(415, f"the body of the request was in an unknown format - {request.content_type}")
        body = json.loads(await request.read())
        new = body if request.method == "PUT" else apply_merge_patch(shown, body)
        asked = body.get("metadata") or {}
        if request.method == "PATCH" and asked.get("uid") not in {None, old["metadata"]["uid"]}:
            return status(
                422, f"{key[2]} is invalid: metadata.uid: Invalid value: {asked['uid']!r}: field is immutable"
            )
        for name in ("uid", "resourceVersion"):
            if asked.get(name) not in {None, old["metadata"][name]}:
                return status(
                    409, f"Operation cannot be fulfilled on {key[0]} {key[2]!r}: the object has been modified"
                )
        if subresource == "scale":
            replicas = new["spec"].get("replicas", 0)
            if not isinstance(replicas, int) or replicas < 0:
                return status(422, f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0")
            new = {**old, "spec": {**old["spec"], "replicas": replicas}}
        cost = (new["metadata"].get("annotations") or {}).get(COST, "0")
        if not cost.removeprefix("-").isdigit() or not -(2**31) <= int(cost) < 2**31:
            return status(422, f"metadata.annotations: Invalid value: {cost!r}: must be a 32bit integer")
        saved = await self.put_object(key[0], new)
        return web.json_response(saved if subresource != "scale" else scale_of(saved))

    async def terminate(self, key: Key) -> None:
        """Delete an object; a pod terminates first, until `delete` removes it."""
        body = self.objects[key]
        if key[0] != "pods":
            await self.delete(key[2], key[1], key[0])
        elif not body["metadata"].get("deletionTimestamp"):
            metadata = {**body["metadata"], "deletionTimestamp": body["metadata"]["creationTimestamp"]}
            await self.put_object("pods", {**body, "metadata": metadata})

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        self.num_watches += 1
        version = int(request.query.get("resourceVersion") or self.version)
        if request.query.get("allowWatchBookmarks") != "true" and request.headers.get("user-agent", "")[:5] == "aioht":
            return status(400, "the source asks for bookmarks")
        if self.num_gone_watches:
            self.num_gone_watches -= 1
            return status(410, "too old resource version")
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        self.open_watches.append(request)
        if version < self.oldest:
            await send(response, {"type": "ERROR", "object": status_body(410, "too old resource version")})
            return response
        loop = asyncio.get_running_loop()
        end = loop.time() + float(request.query.get("timeoutSeconds") or 60)
        while not self.watch_ends_at_once and loop.time() < end:
            newest = self.version
            for number, kind, body in self._events_after(version, plural, namespace, request):
                version = number
                await send(response, {"type": kind, "object": body})
            version = max(version, newest)
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

    def _events_after(
        self, version: int, plural: str, namespace: str, request: web.Request
    ) -> Iterator[tuple[int, str, dict[str, Any]]]:
        label = request.query.get("labelSelector", "")
        for number, where, kind, body in list(self.events):
            is_of_list = where == plural and body["metadata"]["namespace"] == namespace and has_labels(body, label)
            if number > version and (is_of_list or kind == "BOOKMARK"):
                yield number, kind, body


def scale_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the scale subresource of a workload."""
    metadata = {name: body["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata,
        "spec": {"replicas": body["spec"].get("replicas", 1)},
        "status": {"replicas": (body.get("status") or {}).get("replicas", 0), "selector": ""},
    }  # fmt: skip


async def send(response: web.StreamResponse, body: dict[str, Any]) -> None:
    await response.write(json.dumps(body).encode() + b"\n")


@asynccontextmanager
async def fake_kubernetes(token: str | None = None) -> AsyncIterator[FakeKubernetes]:
    fake = FakeKubernetes(token)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = "http://{}:{}".format(*runner.addresses[0])
    try:
        yield fake
    finally:
        await runner.cleanup()
