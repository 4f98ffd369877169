"""RouterAdminRoutes: the router's own routes: models, load, metrics, and the administration of replicas."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from chairlift.core.validation import invalid_param
from chairlift.protocol.model_token_limits import model_token_limits
from chairlift.router.debug_report import plain_value, router_debug_report, source_fields
from chairlift.router.endpoint import MAX_WEIGHT
from chairlift.router.router import Router
from chairlift.web.body import Receive, Scope, Send, header, parse_json_object, read_body
from chairlift.web.error_responses import no_route
from chairlift.web.send_response import send_bytes, send_object

MAX_BODY_BYTES = 65_536


class RouterAdminRoutes:
    """The routes that the router answers itself."""

    def __init__(self, router: Router, drain: Callable[[], Awaitable[None]]) -> None:
        """Create the routes; `drain` starts the shutdown and returns at once."""
        self._router, self._drain = router, drain
        self._created = int(time.time())

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the models of all pools, with aliases and canaries."""
        await send_object(send, {"object": "list", "data": [self._model(name) for name in self._router.model_names()]})

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send one model. Raises NotFound."""
        if not (name := scope["path_params"]["id"]):
            raise no_route(scope["path"])
        await send_object(send, self._model(self._router.resolve_model(name)))

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the Prometheus page."""
        accept = (header(scope, b"accept") or b"").decode("latin-1")
        page, kind = await asyncio.to_thread(self._router.telemetry.metrics.render_for, accept)
        await send_bytes(send, page, kind=kind.encode())

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the router's load."""
        router = self._router
        await send_object(send, {
            "state": router.lifecycle.state,
            "open_requests": router.admission.open_requests,
            "admission_waiting_requests": router.admission.waiting_requests,
            "replicas": router.replicas.num_by_state(),
            "models": router.model_names(),
        })  # fmt: skip

    # -- administrators --------------------------------------------------------------------------------------------

    async def drain(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject new requests, and shut down when the open requests have ended."""
        await self._drain()
        await send_object(send, {"state": self._router.lifecycle.state}, status=202)

    async def replicas(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send every replica with its health and load, the discovery sources and the shared state."""
        router, now = self._router, self._router.clock.now()
        await send_object(send, {
            "replicas": [plain_value(asdict(each)) for each in router.replicas.statuses(now)],
            "sources": [source_fields(each, now) for each in router.source_statuses()],
            "shared_state": asdict(router.shared_state.status()),
        })  # fmt: skip

    async def debug(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything that explains the router's behaviour, without texts and keys."""
        await send_object(send, await router_debug_report(self._router))

    async def drain_replica(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a replica no new requests, and hand its streams over. Raises NotFound."""
        replica_id, _ = await self._read(scope, receive)
        self._router.drain_replica(replica_id)
        await self._send_replica(send, replica_id)

    async def undrain_replica(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Use a drained replica again. Raises NotFound."""
        replica_id, _ = await self._read(scope, receive)
        self._router.replicas.undrain(replica_id, self._router.clock.now())
        await self._send_replica(send, replica_id)

    async def set_weight(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set a replica's weight; null returns to that of its source. Raises NotFound and InvalidRequest."""
        replica_id, body = await self._read(scope, receive)
        if "weight" not in body:
            raise invalid_param("weight", "is missing")
        weight = body["weight"]
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if weight is not None and not (is_number and 0 <= weight <= MAX_WEIGHT):
            raise invalid_param("weight", f"must be a number of 0 to {MAX_WEIGHT:g}, or null for that of its source")
        self._router.replicas.set_weight(replica_id, None if weight is None else float(weight))
        await self._send_replica(send, replica_id)

    async def _read(self, scope: Scope, receive: Receive) -> tuple[str, dict[str, Any]]:
        seconds = self._router.config.http.body_timeout
        body = parse_json_object(await read_body(scope, receive, max_bytes=MAX_BODY_BYTES, seconds=seconds))
        replica_id = body.get("replica_id")
        if not isinstance(replica_id, str) or not replica_id:
            raise invalid_param("replica_id", "must be the URL of a replica, as /admin/replicas lists it")
        return replica_id, body

    async def _send_replica(self, send: Send, replica_id: str) -> None:
        statuses = self._router.replicas.statuses(self._router.clock.now())
        await send_object(send, next(plain_value(asdict(each)) for each in statuses if each.replica_id == replica_id))

    def _model(self, name: str) -> dict[str, Any]:
        fields = {"id": name, "object": "model", "created": self._created, "owned_by": "chairlift"}
        length, details = self._router.max_model_len(name), self._router.model_details(name)
        fields |= {} if length is None else model_token_limits(length)
        return fields if details is None else {**fields, "details": details}
