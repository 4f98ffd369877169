"""live_batch: the events of a replica are what docs/operations.md says, and only administrators get them."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chairlift.core.load_report import ReplicaState
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.server.app import server_app
from chairlift.server.live import engine_reader
from chairlift.server.live import live_batch as module
from chairlift.server.replica import Replica
from chairlift.web.auth.credentials import Credentials
from support_config import make_server_config
from support_live import OPS, OPS_KEYS, LiveStream, watching
from support_process import TIMEOUT_SECONDS
from support_router import serving
from support_server import ADMIN_KEY, CHAT, HELLO, MODEL, fake_server, run
from support_services import FAKE, fake_service, wait_until

USER = {"authorization": "Bearer user"}


@asynccontextmanager
async def served(**scheduler: Any) -> AsyncIterator[tuple[str, Replica]]:
    """Serve a replica over a fake engine; yields its URL."""
    replica = Replica(make_server_config(MODEL))
    replica.attach_service(fake_service(**scheduler), lambda: None, 2048)

    async def drain() -> None:
        replica.lifecycle.drain()

    try:
        async with serving(server_app(replica, Credentials(OPS_KEYS), drain).asgi) as url:
            yield url, replica
    finally:
        await replica.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take snapshots as fast as possible."""
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.001)


def rows_of(hello: Any, batch: Any) -> list[dict[str, Any]]:
    return [dict(zip(hello["row_fields"], row, strict=True)) for row in batch["rows"]]


@pytest.mark.usefixtures("fast")
def test_a_watcher_sees_requests_run_and_wait_without_their_content() -> None:
    slow = replace(FAKE, seconds_per_step=0.002)

    async def scenario() -> None:
        async with served(config=slow, max_running_requests=1) as (url, _), watching(url) as stream:
            hello = await stream.next_data("hello")
            assert (hello["schema"], hello["service"], hello["models"]) == (1, "server", [MODEL])
            empty = await stream.next_data("batch")
            assert empty["rows"] == [] and empty["block_map"] == [-1, 128]
            state = await stream.next_data("server")
            assert (state["state"], state["num_engine_restarts"], state["batch_stale_reason"]) == ("ready", 0, "")
            async with httpx.AsyncClient(base_url=url, headers=USER, timeout=30) as http:
                body = HELLO | {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 250}
                posts = [
                    asyncio.create_task(http.post(CHAT, json=body, headers={"x-request-id": name}))
                    for name in ("one", "two")
                ]
                seen: list[dict[str, Any]] = []
                texts: list[str] = []
                requests: list[Any] = []
                while len(requests) < 2:
                    name, text = await stream.next()
                    texts.append(text)
                    if name == "batch":
                        seen += rows_of(hello, json.loads(text))
                    elif name == "requests":
                        requests += json.loads(text)
                assert [(await post).status_code for post in posts] == [200, 200]
            states = {row["state"] for row in seen}
            assert states >= {"decode", "waiting"} and {row["request_id"] for row in seen} == {"one", "two"}
            assert {row["tenant"] for row in seen} == {"alice"}
            assert "secret" not in "".join(texts)
            assert requests[0]["outcome"] == "length" and requests[0]["events"][0][0] == "queued"
            assert requests[1]["wait_seconds"].keys() >= {"running_limit"}

    run(scenario())


def test_the_minutes_before_are_there_for_a_new_watcher() -> None:
    async def scenario() -> None:
        async with served() as (url, replica):
            async with httpx.AsyncClient(base_url=url, headers=USER) as http:
                assert (await http.post(CHAT, json=HELLO)).status_code == 200
            for _ in range(2):
                await replica._update_gauges()
            async with watching(url) as stream:
                hello = await stream.next_data("hello")
                samples = await stream.next_data("history")
                first, second = (dict(zip(hello["history_fields"], each, strict=True)) for each in samples)
                assert first["num_steps"] >= 5 and first["busy_ms"] > 0 and second["num_steps"] == 0
                (request,) = await stream.next_data("requests")
                assert request["outcome"] == "length" and request["at_seconds"] > 1e9

    run(scenario())


def test_three_watchers_share_the_snapshots_of_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.02)

    async def scenario() -> None:
        async with served() as (url, replica):
            client, num_snapshots = replica.service.client, 0
            inner = client.batch_snapshot

            def batch_snapshot() -> Any:
                nonlocal num_snapshots
                num_snapshots += 1
                return inner()

            monkeypatch.setattr(client, "batch_snapshot", batch_snapshot)
            await asyncio.sleep(0.1)
            assert num_snapshots == 0, "the engine is asked though nothing watches"
            async with watching(url) as first, watching(url) as second, watching(url) as third:
                streams: list[LiveStream] = [first, second, third]
                batches = [await stream.next_data("batch") for stream in streams]
                assert batches[0] == batches[1] == batches[2]
                before = num_snapshots
                await asyncio.sleep(0.2)
                assert 1 <= num_snapshots - before <= 11, "each watcher has its own snapshots"
            await asyncio.sleep(0.1)  # the snapshot in progress ends
            before = num_snapshots
            await asyncio.sleep(0.1)
            assert num_snapshots == before, "the engine is asked though nothing watches any more"

    run(scenario())


@pytest.mark.parametrize(("headers", "status"), [({}, 401), (USER, 403), ({"authorization": "Bearer x"}, 401)])
def test_live_data_needs_an_admin_key(headers: dict[str, str], status: int) -> None:
    async def scenario() -> None:
        async with served() as (url, _), httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/admin/live", headers=headers)).status_code == status
            from_a_page = OPS | {"origin": "http://evil.test"}
            assert (await http.get("/admin/live", headers=from_a_page)).status_code == 403

    run(scenario())


def test_a_server_that_starts_has_a_state_and_no_batch() -> None:
    replica = Replica(make_server_config(MODEL))

    async def drain() -> None:
        raise AssertionError

    async def scenario() -> None:
        async with serving(server_app(replica, Credentials(OPS_KEYS), drain).asgi) as url, watching(url) as stream:
            state = await stream.next_data("server")
            assert (state["state"], state["phase"]) == ("starting", "starting")
            assert state["batch_stale_reason"] == "the server is starting"
            replica.attach_service(fake_service(), lambda: None, 2048)
            assert (await stream.next_data("batch"))["total_blocks"] == 128
        await replica.close()

    run(scenario())


@pytest.mark.usefixtures("fast")
def test_an_engine_that_hangs_is_asked_once_and_its_batch_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_reader, "ENGINE_SECONDS", 0.02)
    hang, questions = threading.Event(), list[int]()

    async def scenario() -> None:
        async with served() as (url, replica):
            client = replica.service.client
            snapshot = client.batch_snapshot

            def wait() -> Any:
                questions.append(1)
                hang.wait(TIMEOUT_SECONDS)
                return snapshot()

            monkeypatch.setattr(client, "batch_snapshot", wait)
            for _ in range(3):  # a page that is opened again and again
                async with watching(url) as stream:
                    server = await stream.next_data("server")
                    assert server["state"] == "ready"
                    assert server["batch_stale_reason"].startswith("the engine did not answer within 0.02 s")
            assert questions == [1]
            replica.lifecycle.drain()
            async with watching(url) as stream:
                assert (await stream.next_data("server"))["state"] == "draining"
                hang.set()
                assert (await stream.next_data("batch"))["total_blocks"] == 128, "no batch while the server leaves"
                server = await stream.next_data("server")
                assert (server["state"], server["batch_stale_reason"]) == ("draining", "")
                monkeypatch.setattr(type(client), "state", ReplicaState.STARTING)
                assert "engine is down" in (await stream.next_data("server"))["batch_stale_reason"]

    run(scenario())


@pytest.mark.full
def test_watchers_stay_while_the_engine_is_killed_and_starts_again() -> None:
    async def scenario(url: str, kill: Any) -> None:
        async with watching(url, {"authorization": f"Bearer {ADMIN_KEY}"}) as stream:
            assert (await stream.next_data("batch"))["total_blocks"] == 512
            before = await asyncio.to_thread(kill)
            state = {"state": "", "num_engine_restarts": 0}
            while (state["num_engine_restarts"], state["state"]) != (1, "ready"):
                state = await stream.next_data("server")
            assert state["instance_id"] != before
            body = HELLO | {"max_tokens": 400}
            async with httpx.AsyncClient(base_url=url, timeout=30) as http:
                post = asyncio.create_task(http.post(CHAT, json=body))
                while not (await stream.next_data("batch"))["rows"]:
                    pass
                assert (await post).status_code == 200
            assert (await stream.next_data("server"))["batch_stale_reason"] == ""

    fake = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.002)
    with fake_server(fake, admin=True) as server:

        def kill() -> str:
            before = str(httpx.get(server.url + "/load").json()["instance_id"])
            os.kill(server.engine_pid, signal.SIGKILL)
            return before

        run(scenario(server.url, kill))
        wait_until(server.is_idle)
