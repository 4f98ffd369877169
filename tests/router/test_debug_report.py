"""GET /admin/debug of a router: replicas, sources, open requests and changes of state, without texts and keys."""

import asyncio
from typing import Any

from jsonschema import Draft202012Validator

from chairlift.protocol.response_schemas import ROUTER_DEBUG
from chairlift.router.debug_report import plain_value
from chairlift.router.discovery.base import SourceState, SourceStatus
from chairlift.web.auth.api_keys import read_keys
from support_replica_set import probed
from support_router import CHAT, HELLO, Connection, ReceivedRequest
from support_router_app import RoutedFleet, complete, routed
from support_server import run

KEYS = read_keys(None, {"CHAIRLIFT_API_KEY": "user-secret", "CHAIRLIFT_ADMIN_KEY": "admin-secret"})
ADMIN = {"authorization": "Bearer admin-secret"}
PROMPT = "zebra crossing"


async def debug(fleet: RoutedFleet) -> dict[str, Any]:
    response = await fleet.http.get("/admin/debug", headers=ADMIN)
    assert response.status_code == 200
    for secret in (PROMPT, "user-secret", "admin-secret"):
        assert secret not in response.text
    report: dict[str, Any] = response.json()
    Draft202012Validator(ROUTER_DEBUG).validate(report)
    return report


def test_an_open_request_is_shown_with_its_replica_and_without_its_text() -> None:
    async def scenario() -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hold(connection: Connection, request: ReceivedRequest) -> None:
            reached.set()
            await go_on.wait()
            await complete(connection, request)

        async with routed(hold, keys=KEYS) as fleet:
            body = {**HELLO, "messages": [{"role": "user", "content": PROMPT}]}
            headers = {"authorization": "Bearer user-secret", "x-request-id": "mine"}
            task = asyncio.create_task(fleet.http.post(CHAT, json=body, headers=headers))
            await reached.wait()
            report = await debug(fleet)
            (shown,) = report["open_requests"]
            assert (shown["request_id"], shown["attempts"], shown["has_output"]) == ("mine", 1, False)
            assert shown["replicas"] == [fleet.replicas[0].url] and shown["age_seconds"] >= 0
            assert report["num_open_requests"] == 1 and report["replicas"][0]["open_requests"] == 1
            go_on.set()
            assert (await task).status_code == 200
            assert (await debug(fleet))["open_requests"] == []

    run(scenario())


def test_changes_of_state_sources_and_further_parts_are_shown() -> None:
    async def scenario() -> None:
        async with routed(complete, keys=KEYS) as fleet:
            router = fleet.running.router
            down_since = router.clock.now() - 5
            router.source_statuses = lambda: (
                SourceStatus(
                    name="dns://replicas", state=SourceState.DOWN, since=down_since, num_endpoints=0,
                    num_updates=0, num_failures=3, last_error="no answer",
                ),
            )  # fmt: skip
            router.shown_settings = {"policy": "random"}
            router.debug_parts["autoscaler"] = lambda: {"target": 2, "rules": frozenset({"b", "a"})}
            for _ in range(5):
                router.replicas.apply_probe(fleet.replicas[0].url, probed(is_success=False), router.clock.now())
            report = await debug(fleet)
            assert (report["service"], report["settings"]) == ("router", {"policy": "random"})
            assert report["transitions"][-1]["new"] == report["replicas"][0]["state"] == "unhealthy"
            assert report["sources"][0]["last_error"] == "no answer" and report["sources"][0]["state_seconds"] >= 5
            assert report["autoscaler"] == {"target": 2, "rules": ["a", "b"]}
            assert report["shared_state"]["is_connected"] and report["held_requests"]["requests"] == 0

    run(scenario())


def test_the_report_needs_an_admin_key() -> None:
    async def scenario() -> None:
        async with routed(complete, keys=KEYS) as fleet:
            assert (await fleet.http.get("/admin/debug")).status_code == 401

    run(scenario())


def test_plain_values_have_no_sets_and_tuples() -> None:
    assert plain_value({"a": frozenset({2, 1}), "b": ({3},)}) == {"a": [1, 2], "b": [[3]]}
