"""FakeConsul: the part of a Consul agent's HTTP API that Chairlift uses, for tests; py-consul drives it, too.

It keeps services with TTL checks, an index that grows with each change, and answers blocking queries.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

NODE = {"ID": "n", "Node": "node-1", "Address": "127.0.0.9", "Datacenter": "dc1"}


def parse_seconds(text: str) -> float:
    """Return the seconds of a Go duration as 30s, 500ms or 1m."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)


def lower_names(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with its names in lower case: Consul ignores their case."""
    return {name.lower(): value for name, value in body.items()}


@dataclass
class FakeService:
    """A service with its TTL check: the body that registered it, and its fields by lower-case name."""

    body: dict[str, Any]
    fields: dict[str, Any]
    check_id: str
    ttl: float
    passed_at: float
    status: str

    def current_status(self) -> str:
        return "critical" if time.monotonic() - self.passed_at > self.ttl else self.status


@dataclass
class FakeConsul:
    """The state of the agent; a test may change it."""

    token: str | None = None
    index: int = 10
    services: dict[str, FakeService] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    fault: web.Response | None = None
    address: str = ""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _passing: dict[str, str] = field(default_factory=dict)

    async def change(self, index: int | None = None) -> None:
        """Raise the index, or set it, and wake the blocking queries."""
        async with self.changed:
            self.index = self.index + 1 if index is None else index
            self.changed.notify_all()

    # -- routes ----------------------------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        index = int(request.query.get("index", 0))
        wait = parse_seconds(request.query.get("wait", "5m"))
        if index and index >= self.index:
            async with self.changed:
                try:
                    async with asyncio.timeout(wait):
                        await self.changed.wait_for(lambda: index != self.index)
                except TimeoutError:
                    pass
        name, tags = request.match_info["name"], request.query.getall("tag", [])
        body = []
        for each in self.services.values():
            status = each.current_status()
            fields = each.fields
            if fields["name"] != name or not set(tags) <= set(fields.get("tags") or ()):
                continue
            if "passing" in request.query and status != "passing":
                continue
            service = {
                "ID": fields["id"], "Service": name, "Tags": fields.get("tags") or [],
                "Address": fields.get("address", ""), "Port": fields.get("port", 0), "Meta": fields.get("meta") or {},
                "Weights": fields.get("weights") or {"Passing": 1, "Warning": 1},
            }  # fmt: skip
            check = {"CheckID": each.check_id, "ServiceID": fields["id"], "Status": status}
            body.append({"Node": NODE, "Service": service, "Checks": [check]})
        return web.json_response(body, headers={"X-Consul-Index": str(self.index), "X-Consul-KnownLeader": "true"})

    async def register(self, request: web.Request) -> web.Response:
        body = await request.json()
        given = lower_names(body)
        checks = [lower_names(each) for each in (given.get("checks") or [given.get("check") or {}])]
        assert len(checks) == 1, "the fake keeps one check of a service"
        (check,) = checks
        if parse_seconds(check.get("deregistercriticalserviceafter", "1m")) < 60:
            return web.Response(status=400, text="the least is 1m")
        service_id = given.get("id") or given["name"]
        self.services[service_id] = FakeService(
            body, {**given, "id": service_id}, check.get("checkid") or f"service:{service_id}",
            parse_seconds(check.get("ttl", "1000m")), time.monotonic(), check.get("status", "critical"),
        )  # fmt: skip
        await self.change()
        return web.Response()

    async def check(self, request: web.Request) -> web.Response:
        for each in self.services.values():
            if each.check_id == request.match_info["check"]:
                was_passing = each.current_status() == "passing"
                each.passed_at, each.status = time.monotonic(), "passing"
                if not was_passing:
                    await self.change()
                return web.Response()
        return web.Response(status=404, text=f'Unknown check ID "{request.match_info["check"]}"')

    async def deregister(self, request: web.Request) -> web.Response:
        if self.services.pop(request.match_info["id"], None) is None:
            return web.Response(status=404, text="Unknown service ID")
        await self.change()
        return web.Response()

    @web.middleware
    async def _check_request(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path, dict(request.query)))
        if self.token is not None and request.headers.get("X-Consul-Token") != self.token:
            return web.Response(status=403, text="ACL not found")
        if self.fault is not None:
            return web.Response(
                status=self.fault.status, text=self.fault.text, headers={"X-Consul-Index": str(self.index)}
            )
        response: web.StreamResponse = await handler(request)
        return response

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._check_request])
        app.router.add_get("/v1/health/service/{name}", self.health)
        app.router.add_put("/v1/agent/service/register", self.register)
        app.router.add_put("/v1/agent/check/pass/{check}", self.check)
        app.router.add_put("/v1/agent/service/deregister/{id}", self.deregister)
        return app

    async def expire_checks(self) -> None:
        """Raise the index when a check becomes critical or passes again, as Consul does."""
        while True:
            statuses = {name: each.current_status() for name, each in self.services.items()}
            has_changed = any(self._passing.get(name, status) != status for name, status in statuses.items())
            self._passing = statuses
            if has_changed:
                await self.change()
            await asyncio.sleep(0.02)


@asynccontextmanager
async def fake_consul(token: str | None = None) -> AsyncIterator[FakeConsul]:
    consul = FakeConsul(token=token)
    runner = web.AppRunner(consul.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    consul.address = "{}:{}".format(*runner.addresses[0])
    expiring = asyncio.create_task(consul.expire_checks())
    try:
        yield consul
    finally:
        expiring.cancel()
        await runner.cleanup()
