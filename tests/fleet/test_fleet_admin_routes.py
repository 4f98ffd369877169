"""FleetAdminRoutes: what administrators see of a fleet, and what an update changes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.controller import Controller
from chairlift.cluster.base import ReplicaSpec
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.fleet.fleet_admin_routes import FleetAdminRoutes, is_argument
from support_fleet import OLD, FakeFleet
from support_server import run
from support_shares import for_each


def parse_spec(model: str | None, arguments: tuple[str, ...] | None, spec: ReplicaSpec) -> ReplicaSpec:
    if arguments == ("--bad",):
        raise ConfigError("`serve` has no option --bad")
    return replace(spec, model=model or spec.model, arguments=spec.arguments if arguments is None else arguments)


class Admin:
    """The routes over a fleet, called without HTTP."""

    def __init__(self, **limits: Any) -> None:
        self.fleet, self.routes = FakeFleet(**limits), FleetAdminRoutes()
        self.controller = Controller(self.fleet.actuator, AutoscalerConfig(version=OLD.version), self.fleet.clock)
        self.routes.attach(self.controller, self.fleet.actuator, parse_spec)

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        sent: list[Any] = []
        messages = [{"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        (handler,) = [each for *route, each in self.routes.routes() if route == [method, path]]
        scope = {"type": "http", "method": method, "path": path, "headers": [(b"content-type", b"application/json")]}
        await handler(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(each.get("body", b"") for each in sent))


def test_the_status_has_replicas_their_states_and_the_decisions() -> None:
    async def scenario() -> None:
        admin = Admin()
        await admin.controller.step()
        admin.fleet.report("r1")
        await admin.controller.step()
        status, fields = await admin.call("GET", "/admin/fleet")
        assert status == 200 and fields["target"] == 1 and fields["model"] == "old" and not fields["is_updating"]
        (replica,) = fields["replicas"]
        assert (replica["replica_id"], replica["state"], replica["version"]) == ("r1", "ready", OLD.version)
        assert fields["autoscaler"]["decisions_with_change"][0]["target"] == 1
        live = await admin.routes.live_fields()
        assert json.loads(json.dumps(live)) == fields, "the live data has the same fields"
        pool = admin.routes.pool()  # the part of /admin/debug: arguments may have secrets
        assert pool["replicas"] == fields["replicas"] and pool.keys().isdisjoint({"arguments", "model"})

    run(scenario())


def test_the_live_data_has_only_the_newest_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = [{"target": number} for number in range(100)]
    admin = Admin()
    monkeypatch.setattr(admin.controller.status, "as_json", lambda: {"decisions_with_change": decisions})
    fields: Any = run(admin.routes.live_fields())
    assert fields["autoscaler"]["decisions_with_change"] == decisions[:20]


def test_an_update_changes_the_spec_and_the_version_that_the_autoscaler_keeps() -> None:
    async def scenario() -> None:
        admin = Admin()
        status, fields = await admin.call("POST", "/admin/fleet/update", {"model": "new", "arguments": ["--seed", "1"]})
        assert status == 202 and fields["is_updating"] and fields["arguments"] == ["--seed", "1"]
        spec = admin.fleet.actuator.spec
        assert (spec.model, spec.arguments) == ("new", ("--seed", "1"))
        assert admin.controller.config.version == spec.version == fields["version"] != OLD.version

    run(scenario())


@for_each(("body", "message"), [
    ({"arguments": ["--bad"]}, "`serve` has no option --bad"), ({"arguments": [1]}, "arguments must be a list"),
    ({"model": []}, "model must be a text"), ({"x": 1}, "x is no field of an update"),
    ({"model": "a\0b"}, "model must be text that a command line can have, got 'a.x00b'"),
    ({"arguments": ["--a", "b\0"]}, "arguments must be text that a command line can have"),
])  # fmt: skip
def test_an_invalid_update_changes_nothing(body: Any, message: str) -> None:
    async def scenario() -> None:
        admin = Admin()
        with pytest.raises(InvalidRequest, match=message):
            await admin.call("POST", "/admin/fleet/update", body)
        assert admin.fleet.actuator.spec == OLD and not admin.fleet.actuator.status.is_updating

    run(scenario())


@pytest.mark.parametrize(("text", "is_valid"), [("é", True), ("", True), ("a\0", False), ("\ud800", False)])
def test_a_text_that_no_process_can_be_started_with(text: str, is_valid: bool) -> None:
    assert is_argument(text) is is_valid


@pytest.mark.parametrize("limits", [{"is_dry_run": True}, {"has_versions": False}])
def test_a_fleet_that_does_not_start_its_replicas_refuses_updates(limits: dict[str, bool]) -> None:
    async def scenario() -> None:
        admin = Admin(**limits)
        with pytest.raises(InvalidRequest, match="this fleet does not update its replicas"):
            await admin.call("POST", "/admin/fleet/update", {"model": "new"})
        assert admin.fleet.actuator.spec == OLD

    run(scenario())


def test_after_a_failed_update_the_autoscaler_keeps_the_version_before() -> None:
    async def scenario() -> None:
        admin = Admin()
        await admin.fleet.ready(1)
        admin.fleet.cluster.broken.add(replace(OLD, model="new").version)
        await admin.call("POST", "/admin/fleet/update", {"model": "new"})
        await admin.fleet.run(20)
        status, fields = await admin.call("GET", "/admin/fleet")
        assert (status, fields["model"], fields["version"]) == (200, "old", OLD.version)
        assert "no such model" in fields["update_failure"] and not fields["is_updating"]
        assert admin.controller.config.version == OLD.version

    run(scenario())
