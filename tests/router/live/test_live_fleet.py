"""live_fleet: the events of a router are what docs/router.md says, and only administrators get them."""

import asyncio
from typing import Any

import pytest

from chairlift.router.live import live_fleet as module
from chairlift.web.auth.api_keys import read_keys
from support_live import watching
from support_router import CHAT, HELLO, Connection, ReceivedRequest
from support_router_app import complete, routed
from support_server import run

KEYS = read_keys(None, {"CHAIRLIFT_API_KEY": "k", "CHAIRLIFT_ADMIN_KEY": "a"})
ADMIN = {"authorization": "Bearer a"}
USER = {"authorization": "Bearer k"}


async def broken(connection: Connection, request: ReceivedRequest) -> None:
    """Answer with an error that another replica may not have."""
    await connection.respond({"error": {"message": "no"}}, status=500)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the replicas as fast as possible."""
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.002)


def test_a_watcher_sees_replicas_requests_and_why_a_replica_is_drained() -> None:
    async def scenario() -> None:
        async with routed(broken, complete, keys=KEYS) as fleet, watching(fleet.running.url, ADMIN) as stream:
            hello = await stream.next_data("hello")
            assert hello == {"schema": 1, "service": "router", "interval_seconds": 0.002, "policy": "round_robin"}
            transitions = await stream.next_data("transitions")
            assert [each["cause"] for each in transitions] == ["added", "added"]
            state = await stream.next_data("router")
            assert (state["state"], state["models"], state["held_requests"]) == ("ready", ["m"], 0)
            replicas = await stream.next_data("replicas")
            assert {each["replica_id"] for each in replicas} == {each.url for each in fleet.replicas}
            responses = [
                await fleet.http.post(CHAT, json=HELLO | {"user": "u"}, headers=USER | {"x-request-id": name})
                for name in ("one", "two")
            ]
            assert [each.status_code for each in responses] == [200, 200]
            requests: list[Any] = []
            while len(requests) < 2:
                requests += await stream.next_data("requests")
            attempts = [[(each["purpose"], each["reason"]) for each in request["attempts"]] for request in requests]
            assert sorted(attempts) == [[("first", "")], [("first", "status"), ("retry", "")]]
            assert [each["request_id"] for each in requests] == ["one", "two"]
            assert all(each["outcome"] == "complete" and each["prompt_tokens"] > 0 for each in requests)
            assert "Hello" not in str(requests)
            fleet.running.router.drain_replica(fleet.replicas[1].url)
            (drained,) = await stream.next_data("transitions")
            assert (drained["new"], drained["cause"]) == ("drained", "admin") and drained["reason"]

    run(scenario())


def test_an_open_request_is_shown_with_what_it_waits_for() -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(connection: Connection, request: ReceivedRequest) -> None:
        asked.set()
        await may_answer.wait()
        await complete(connection, request)

    async def scenario() -> None:
        async with routed(slow, keys=KEYS) as fleet:
            post = asyncio.create_task(fleet.http.post(CHAT, json=HELLO, headers=USER))
            await asked.wait()
            async with watching(fleet.running.url, ADMIN) as stream:
                (request,) = await stream.next_data("open_requests")
                assert request["outcome"] == "" and request["attempts"][0]["ended_seconds"] is None
                may_answer.set()
                assert (await post).status_code == 200
                assert await stream.next_data("open_requests") == []

    run(scenario())


@pytest.mark.parametrize(("headers", "status"), [({}, 401), (USER, 403)])
def test_live_data_needs_an_admin_key(headers: dict[str, str], status: int) -> None:
    async def scenario() -> None:
        async with routed(complete, keys=KEYS) as fleet:
            assert (await fleet.http.get("/admin/live", headers=headers)).status_code == status
            assert not fleet.received("/admin/live")

    run(scenario())
