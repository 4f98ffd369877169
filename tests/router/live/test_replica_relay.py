"""ReplicaRelay: an administrator reads a replica through the router, and no other server gets the admin key."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.router.endpoint import ReplicaKind
from chairlift.router.proxy.upstream import UpstreamConfig
from chairlift.web.auth.api_keys import read_keys
from chairlift.web.service import live_feed
from support_live import LiveStream
from support_router import RunningRouter, running_router
from support_router_app import complete, routed, served_replica
from support_server import run

KEYS = read_keys(None, {"CHAIRLIFT_API_KEY": "k", "CHAIRLIFT_ADMIN_KEY": "a"})
REPLICA_KEYS = read_keys(None, {"CHAIRLIFT_API_KEY": "rk", "CHAIRLIFT_ADMIN_KEY": "replica-admin"})
ADMIN, USER = {"authorization": "Bearer a"}, {"authorization": "Bearer k"}
DEBUG, LIVE = "/admin/replicas/debug", "/admin/replicas/live"


def options(tmp_path: Path, admin_key: str = "replica-admin") -> dict[str, Any]:
    """Return the options of a router that knows this admin key of its replicas."""
    file = tmp_path / "admin-key"
    file.write_text(f"{admin_key}\n", encoding="ascii")
    return {"keys": KEYS, "kind": ReplicaKind.CHAIRLIFT, "upstream": UpstreamConfig(admin_key_file=file)}


async def get(running: RunningRouter, path: str, url: str, headers: dict[str, str] = ADMIN) -> httpx.Response:
    async with httpx.AsyncClient(base_url=running.url, timeout=10) as http:
        return await http.get(path, params={"replica_id": url}, headers=headers)


def test_a_replica_is_read_with_the_router_s_key_for_its_administration(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served_replica(REPLICA_KEYS) as url, running_router([url], **options(tmp_path)) as running:
            response = await get(running, DEBUG, url)
            report = response.json()
            assert response.status_code == 200 and report["service"] == "replica" and "engine" in report
            assert "replica-admin" not in response.text
            own = (await get(running, "/admin/debug", url)).json()
            assert own["service"] == "router" and own["has_replica_admin_key"] is True
            assert (await get(running, DEBUG, url, USER)).status_code == 403
            assert (await get(running, DEBUG, url, {})).status_code == 401

    run(scenario())


def test_live_data_of_a_replica_passes_until_the_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[live_feed.LiveFeed] = []
    relay = live_feed.LiveFeed.relay

    async def noted(self: live_feed.LiveFeed, *parts: Any) -> None:
        made.append(self)
        await relay(self, *parts)

    monkeypatch.setattr(live_feed.LiveFeed, "relay", noted)

    async def scenario() -> None:
        async with (
            served_replica(REPLICA_KEYS) as url, running_router([url], **options(tmp_path)) as running,
            httpx.AsyncClient(base_url=running.url, timeout=10) as http,
            http.stream("GET", LIVE, params={"replica_id": url}, headers=ADMIN) as response,
        ):  # fmt: skip
            stream = LiveStream(response)
            assert (await stream.next_data("hello"))["service"] == "server"
            await made[0].close()
            with pytest.raises(StopAsyncIteration):
                await stream.next_data("no event has this name")

    run(scenario())


def test_another_server_never_gets_the_admin_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with routed(complete, **options(tmp_path) | {"kind": ReplicaKind.OPENAI}) as fleet:
            for path in (DEBUG, LIVE):
                assert (await get(fleet.running, path, fleet.replicas[0].url)).status_code == 404
                assert (await get(fleet.running, path, "http://127.0.0.1:9")).status_code == 404
            assert not fleet.replicas[0].requests

    run(scenario())


@pytest.mark.parametrize("path", [DEBUG, LIVE])
def test_what_cannot_be_read_is_an_error_with_its_reason(tmp_path: Path, path: str) -> None:
    async def scenario() -> None:
        async with served_replica(REPLICA_KEYS) as url:
            async with running_router([url], **options(tmp_path, "wrong")) as running:
                rejected = await get(running, path, url)
                assert rejected.status_code == 502 and "status 401" in rejected.json()["error"]["message"]
                async with httpx.AsyncClient(base_url=running.url) as http:
                    assert (await http.get(path, headers=ADMIN)).status_code == 400
            async with running_router([url], keys=KEYS, kind=ReplicaKind.CHAIRLIFT) as running:
                missing = await get(running, path, url)
                assert missing.status_code == 404
                assert "--replica-admin-key-file" in missing.json()["error"]["message"]
        async with running_router([url], **options(tmp_path)) as running:  # the replica is gone
            assert (await get(running, path, url)).status_code == 502

    run(scenario())
