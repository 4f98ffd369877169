"""FleetAdminRoutes: the routes with which administrators look at a fleet and update it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from chairlift.autoscaler.controller import Controller
from chairlift.cluster.base import ReplicaSpec
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.core.validation import invalid_param
from chairlift.fleet.pool_actuator import PoolActuator
from chairlift.web.body import Receive, Scope, Send, parse_json_object, read_body
from chairlift.web.route_entry import RouteEntry
from chairlift.web.send_response import send_object

MAX_BODY_BYTES = 65_536
BODY_SECONDS = 10.0
NUM_LIVE_DECISIONS = 20
"""Decisions in the live data, the newest ones."""

ParseSpec = Callable[[str | None, tuple[str, ...] | None, ReplicaSpec], ReplicaSpec]


class FleetAdminRoutes:
    """GET /admin/fleet and POST /admin/fleet/update."""

    _controller: Controller
    _actuator: PoolActuator
    _parse_spec: ParseSpec

    def attach(self, controller: Controller, actuator: PoolActuator, parse_spec: ParseSpec) -> None:
        """Show this autoscaler and this pool."""
        self._controller, self._actuator, self._parse_spec = controller, actuator, parse_spec
        actuator.on_version = self._set_version

    def routes(self) -> Sequence[RouteEntry]:
        """Return the routes."""
        return ("GET", "/admin/fleet", self.fleet), ("POST", "/admin/fleet/update", self.update)

    async def fleet(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the replicas, the last decisions with their numbers, and what is being updated."""
        await send_object(send, self._status())

    async def live_fields(self) -> object:
        """Return the same for the live data, with the newest decisions."""
        status = self._status()
        autoscaler = status["autoscaler"]
        decisions = autoscaler["decisions_with_change"][:NUM_LIVE_DECISIONS]
        return status | {"autoscaler": autoscaler | {"decisions_with_change": decisions}}

    def pool(self) -> dict[str, Any]:
        """Return the replicas of the pool and the state of an update; a replica's arguments may have secrets."""
        return {**asdict(self._actuator.status), "replicas": self._actuator.replicas()}

    async def update(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Replace the replicas by those of another model or other arguments. Raises InvalidRequest."""
        body = parse_json_object(await read_body(scope, receive, max_bytes=MAX_BODY_BYTES, seconds=BODY_SECONDS))
        if not self._actuator.accepts_updates:
            raise InvalidRequest("this fleet does not update its replicas: it is a dry run, or its cluster sets them")
        if unknown := body.keys() - {"model", "arguments"}:
            raise invalid_param(min(unknown), "is no field of an update; there are model and arguments")
        model, arguments = body.get("model"), body.get("arguments")
        if model is not None and not isinstance(model, str):
            raise invalid_param("model", "must be a text")
        is_list = isinstance(arguments, list) and all(isinstance(each, str) for each in arguments)
        if arguments is not None and not is_list:
            raise invalid_param("arguments", "must be a list of texts, the options of `chairlift serve`")
        for name, text in (("model", model or ""), *(("arguments", each) for each in arguments or ())):
            if not is_argument(text):
                raise invalid_param(name, f"must be text that a command line can have, got {text[:100]!a}")
        try:
            spec = self._parse_spec(model, None if arguments is None else tuple(arguments), self._actuator.spec)
        except ConfigError as error:
            raise InvalidRequest(error.message, param="arguments") from None
        self._actuator.update(spec)
        await send_object(send, self._status(), status=202)

    def _set_version(self, version: str) -> None:
        self._controller.update_config(replace(self._controller.config, version=version))

    def _status(self) -> dict[str, Any]:
        spec = self._actuator.spec
        return {
            "model": spec.model, "arguments": list(spec.arguments), **asdict(self._actuator.status),
            "replicas": self._actuator.replicas(), "autoscaler": self._controller.status.as_json(),
        }  # fmt: skip


def is_argument(text: str) -> bool:
    """Return whether a process can be started with this argument."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
