"""consul.py: blocking queries, health filter, an index that goes backwards; py-consul drives the fake, too."""

import asyncio
import time
from pathlib import Path
from typing import Any

import consul as py_consul
import pytest
from aiohttp import web

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery import consul as module
from chairlift.router.discovery.consul import ConsulSource
from chairlift.router.endpoint import Endpoint, ReplicaKind
from support_discovery import urls, watching
from support_services_consul import FakeConsul, fake_consul
from support_shares import for_each

PASSING = {"TTL": "60s", "Status": "passing"}


def client(fake: FakeConsul) -> Any:
    host, port = fake.address.split(":")
    return py_consul.Consul(host=host, port=int(port), token=fake.token)


async def register(fake: FakeConsul, port: int, **fields: Any) -> None:
    """Register a service by py-consul, which must not notice that this is no Consul."""
    known: dict[str, Any] = {"service_id": f"r-{port}", "address": "127.0.0.1", "port": port, "check": PASSING}
    await asyncio.to_thread(client(fake).agent.service.register, "llm", **{**known, **fields})


def test_the_fake_answers_an_independent_client_as_consul_does() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            await register(fake, 1, tags=["gpu"], meta={"zone": "eu-1"})
            agent = client(fake)
            index, nodes = await asyncio.to_thread(agent.health.service, "llm", passing=True, tag="gpu")
            assert int(index) == fake.index
            assert (nodes[0]["Service"]["Port"], nodes[0]["Service"]["Meta"]) == (1, {"zone": "eu-1"})
            assert (await asyncio.to_thread(agent.health.service, "llm", tag="cpu"))[1] == []
            started_at = time.monotonic()
            assert (await asyncio.to_thread(agent.health.service, "llm", index=index, wait="50ms"))[0] == index
            assert time.monotonic() - started_at >= 0.05
            await asyncio.to_thread(agent.agent.check.ttl_pass, "service:r-1")
            assert not await asyncio.to_thread(agent.agent.check.ttl_pass, "service:r-2")
            await asyncio.to_thread(agent.agent.service.deregister, "r-1")
            assert (await asyncio.to_thread(agent.health.service, "llm"))[1] == []

    asyncio.run(scenario())


def test_instances_become_endpoints_and_changes_are_seen_at_once() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            await register(fake, 1, meta={"models": "a,b", "kind": "chairlift", "version": "2", "zone": "z"})
            async with watching(ConsulSource(f"consul://{fake.address}/llm")) as reader:
                assert await reader.next() == (
                    Endpoint(url="http://127.0.0.1:1", models=("a", "b"), kind=ReplicaKind.CHAIRLIFT, version="2",
                             zone="z"),
                )  # fmt: skip
                following = asyncio.create_task(reader.next())
                await asyncio.sleep(0.15)
                assert not following.done()
                started_at = time.monotonic()
                await register(fake, 2, address=None, weights={"Passing": 5, "Warning": 1})
                _, second = await following
                assert time.monotonic() - started_at < 2
                assert second == Endpoint(url="http://127.0.0.9:2", weight=5)  # the address of the node
                await asyncio.to_thread(client(fake).agent.service.deregister, "r-1")
                assert await reader.next() == (second,)
            blocking = [query for _, _, query in fake.requests if "index" in query]
            assert blocking and all(query["wait"] == "55000ms" and "passing" in query for query in blocking)

    asyncio.run(scenario())


def test_an_instance_whose_check_is_critical_leaves_and_comes_back() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            await register(fake, 1)
            await register(fake, 2, check={"TTL": "300ms", "Status": "passing"})
            async with watching(ConsulSource(f"consul://{fake.address}/llm")) as reader:
                assert len(await reader.next()) == 2
                assert urls(await reader.next(2)) == ["http://127.0.0.1:1"]
                await asyncio.to_thread(client(fake).agent.check.ttl_pass, "service:r-2")
                assert len(await reader.next(2)) == 2

    asyncio.run(scenario())


def test_tags_datacenter_scheme_token_and_defaults(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n", encoding="utf-8")

    async def scenario() -> None:
        async with fake_consul("secret") as fake:
            await register(fake, 1, tags=["gpu", "eu"])
            await register(fake, 2, tags=["gpu"])
            options = f"tag=gpu,eu&dc=dc1&scheme=https&zone=z&token_file={token}"
            async with watching(ConsulSource(f"consul://{fake.address}/llm?{options}")) as reader:
                assert await reader.next() == (Endpoint(url="https://127.0.0.1:1", zone="z"),)
                assert fake.requests[-1][2]["dc"] == "dc1"
            token.write_text("another", encoding="utf-8")
            async with watching(ConsulSource(f"consul://{fake.address}/llm?{options}")) as reader:
                with pytest.raises(DiscoveryFailed, match="status 403: ACL not found"):
                    await reader.next()

    asyncio.run(scenario())


def test_an_index_that_goes_backwards_begins_again() -> None:
    """With its old index a blocking query would wait until the new store has counted up to it."""

    async def scenario() -> None:
        async with fake_consul() as fake:
            await register(fake, 1)
            await fake.change(1000)
            async with watching(ConsulSource(f"consul://{fake.address}/llm")) as reader:
                await reader.next()
                following = asyncio.create_task(reader.next())
                await asyncio.sleep(0.15)
                await fake.change(3)
                assert await following == ()  # what the new store does not list may not have registered again yet
                assert len(await reader.next()) == 1
                following = asyncio.create_task(reader.next())
                await asyncio.sleep(0.25)
                await register(fake, 2)
                assert len(await following) == 2
            indexes = [query.get("index") for _, path, query in fake.requests if path.startswith("/v1/health")]
            assert indexes[:3] == [None, "1000", None]
            assert indexes[3] == "3"

    asyncio.run(scenario())


def test_a_new_watch_of_a_store_that_lost_its_data_yields_an_empty_list_first() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            await register(fake, 1)
            source = ConsulSource(f"consul://{fake.address}/llm")
            for index, lists in ((1000, [1]), (1000, [1]), (3, [0, 1]), (4, [1])):
                await fake.change(index)
                async with watching(source) as reader:
                    assert [len(await reader.next()) for _ in lists] == lists

    asyncio.run(scenario())


@for_each(("status", "text", "message"), [
    (200, "no json", "answers with status 200: no json"), (200, "{}", "answers with status 200"),
    (200, "[{}]", "Consul answers nonsense: KeyError"), (200, '[{"Service": 1}]', "nonsense: AttributeError"),
    (500, "no leader", "status 500: no leader"), (403, "denied", "status 403: denied"),
    (200, '[{"Service": {"ID": "a", "Port": "x", "Address": "h"}}]', "nonsense: ValueError"),
    (200, '[{"Service": {"ID": "a", "Port": 0, "Address": "h h"}}]', "none of the 1 instances of 'llm' is a replica"),
])  # fmt: skip
def test_answers_that_are_nonsense(status: int, text: str, message: str) -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            fake.fault = web.Response(status=status, text=text)
            async with watching(ConsulSource(f"consul://{fake.address}/llm")) as reader:
                with pytest.raises(DiscoveryFailed, match=message):
                    await reader.next()

    asyncio.run(scenario())


def test_an_index_of_0_is_an_error() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            fake.index = 0
            async with watching(ConsulSource(f"consul://{fake.address}/llm")) as reader:
                with pytest.raises(DiscoveryFailed, match="the index 0, which should be above 0"):
                    await reader.next()

    asyncio.run(scenario())


def test_an_instance_that_is_no_replica_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            await register(fake, 1)
            await register(fake, 2, meta={"weight": "heavy"})
            async with watching(ConsulSource(f"consul://{fake.address}/llm")) as reader:
                assert urls(await reader.next()) == ["http://127.0.0.1:1"]

    asyncio.run(scenario())
    assert "the instance r-2 of Consul is not a replica: weight must be a number, got 'heavy'" in caplog.text


def test_an_index_that_changes_all_the_time_does_not_make_queries_without_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MIN_QUERY_SECONDS", 0.05)

    async def scenario() -> None:
        async with fake_consul() as fake:
            await register(fake, 1)
            async with watching(ConsulSource(f"consul://{fake.address}/llm")) as reader:
                await reader.next()
                following, started_at = asyncio.create_task(reader.next()), time.monotonic()
                for _ in range(60):
                    await fake.change()
                    await asyncio.sleep(0.005)
                following.cancel()
                await asyncio.wait([following])
                assert len(fake.requests) <= (time.monotonic() - started_at) / 0.05 + 3

    asyncio.run(scenario())


@pytest.mark.parametrize(("text", "message"), [
    ("consul://h", "has no name of a service"), ("consul://h/a/b", "has no name of a service"),
    ("consul://h,i/a", "has 2 hosts, consul takes one"), ("consul://h/a?scheme=ftp", "'ftp://localhost' is no URL"),
    ("consul://h/a?tags=x", r"unknown option 'tags'; did you mean tag\?"),
])  # fmt: skip
def test_urls_that_are_not_valid(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConsulSource(text)
