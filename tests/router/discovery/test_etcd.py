"""etcd.py: the list and its changes, with a real etcd: leases, compaction, SIGKILL, values that are none."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.etcd import EtcdSource
from chairlift.router.endpoint import Endpoint, ReplicaKind
from support_discovery import urls, watching
from support_services_processes import EtcdServer, etcd_server, free_port
from support_shares import for_each


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def put_replica(etcd: EtcdServer, prefix: str, port: int, **fields: object) -> None:
    etcd.put(f"/{prefix}/{port}", json.dumps({"url": f"http://127.0.0.1:{port}", "instance": "i-1", **fields}))


def test_the_records_of_a_prefix_become_endpoints(etcd: EtcdServer) -> None:
    put_replica(etcd, "a", 1, weight=2, models=["m"], kind="chairlift", version="v2", zone="eu-1")
    etcd.put("/a/2", "http://127.0.0.1:2")
    etcd.put("/a2/3", "http://127.0.0.1:3")  # another prefix

    async def scenario() -> None:
        async with watching(EtcdSource(f"etcd://{etcd.host}/a")) as reader:
            assert await reader.next() == (
                Endpoint(url="http://127.0.0.1:1", weight=2, models=("m",), kind=ReplicaKind.CHAIRLIFT, version="v2",
                         zone="eu-1"),
                Endpoint(url="http://127.0.0.1:2"),
            )  # fmt: skip

    asyncio.run(scenario())


def test_options_of_the_url_are_defaults_of_the_records(etcd: EtcdServer) -> None:
    put_replica(etcd, "options", 1, zone="own")

    async def scenario() -> None:
        async with watching(EtcdSource(f"etcd://{etcd.host}/options?weight=3&zone=default&models=a,b")) as reader:
            expected = Endpoint(url="http://127.0.0.1:1", weight=3, models=("a", "b"), zone="own")
            assert await reader.next() == (expected,)

    asyncio.run(scenario())


def test_each_change_is_a_snapshot_and_a_repeated_value_is_none(etcd: EtcdServer) -> None:
    put_replica(etcd, "b", 1)

    async def scenario() -> None:
        async with watching(EtcdSource(f"etcd://{etcd.host}/b")) as reader:
            assert urls(await reader.next()) == ["http://127.0.0.1:1"]
            following = asyncio.create_task(reader.next())
            await asyncio.sleep(0.05)
            put_replica(etcd, "b", 1)
            started_at = time.monotonic()
            put_replica(etcd, "b", 2)
            assert urls(await following) == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
            assert time.monotonic() - started_at < 2
            etcd.delete("/b/1")
            assert urls(await reader.next()) == ["http://127.0.0.1:2"]
            etcd.delete("/b/2")
            assert await reader.next() == ()

    asyncio.run(scenario())


def test_a_value_that_is_no_record_is_left_out_with_a_log_line(
    etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    put_replica(etcd, "c", 1)
    etcd.put("/c/bad-json", "{")
    etcd.put("/c/bad-url", '{"url": "ftp://x"}')
    etcd.put("/c/bad-type", '{"url": 7}')

    async def scenario() -> None:
        async with watching(EtcdSource(f"etcd://{etcd.host}/c")) as reader:
            assert urls(await reader.next()) == ["http://127.0.0.1:1"]
            put_replica(etcd, "c", 1, weight="heavy")
            with pytest.raises(DiscoveryFailed, match="none of the 4 values is the record of a replica"):
                await reader.next()

    asyncio.run(scenario())
    for key in ("/c/bad-json", "/c/bad-url", "/c/bad-type"):
        assert f"the value of the key {key} is not the record of a replica" in caplog.text
    assert "weight must be a number, got 'heavy'" in caplog.text


def test_a_compacted_revision_is_listed_again(etcd: EtcdServer) -> None:
    """The list is old when the watch begins: its revision was compacted in between."""
    put_replica(etcd, "d", 1)
    source = EtcdSource(f"etcd://{etcd.host}/d")

    async def scenario() -> None:
        async with watching(source) as reader:
            assert urls(await reader.next()) == ["http://127.0.0.1:1"]
            # the generator stands between list and watch
            put_replica(etcd, "d", 2)
            put_replica(etcd, "d", 3)
            etcd.compact(etcd.put("/other", "x"))
            assert urls(await reader.next()) == [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
            put_replica(etcd, "d", 4)
            assert len(await reader.next()) == 4

    asyncio.run(scenario())


@pytest.mark.share(1)
@pytest.mark.parametrize("seed", range(3))
def test_random_changes_end_in_the_list_of_etcd(etcd: EtcdServer, seed: int) -> None:
    """Puts, deletes and compactions while the source watches, is closed, and watches again."""
    rng, prefix = random.Random(seed), f"random-{seed}"
    source = EtcdSource(f"etcd://{etcd.host}/{prefix}")

    def change() -> None:
        port, action = rng.randint(1, 8), rng.random()
        if action < 0.6:
            put_replica(etcd, prefix, port, weight=rng.randint(1, 3))
        elif action < 0.9:
            etcd.delete(f"/{prefix}/{port}")
        else:
            etcd.compact(etcd.put(f"/elsewhere/{prefix}", "x"))

    def expected() -> list[tuple[str, float]]:
        records = [json.loads(value) for _, value in sorted(etcd.keys(f"/{prefix}/").items())]
        return [(each["url"], each["weight"]) for each in records if each["weight"] < 100]

    async def scenario() -> None:
        for _ in range(3):
            async with watching(source) as reader:
                await reader.next()
                wanted: list[list[tuple[str, float]]] = []
                reading = asyncio.create_task(
                    reader.until(lambda found: [[(each.url, each.weight) for each in found]] == wanted)  # noqa: B023
                )
                await asyncio.to_thread(lambda: [change() for _ in range(25)])
                wanted.append([*expected(), ("http://127.0.0.1:9", weight := rng.randint(100, 999))])
                put_replica(etcd, prefix, 9, weight=weight)
                await reading

    asyncio.run(scenario())


def test_a_silent_watch_is_renewed(etcd: EtcdServer) -> None:
    put_replica(etcd, "e", 1)

    async def scenario() -> None:
        async with watching(EtcdSource(f"etcd://{etcd.host}/e", idle_seconds=1.05)) as reader:
            await reader.next()
            following = asyncio.create_task(reader.next())
            await asyncio.sleep(1.3)
            assert not following.done()
            put_replica(etcd, "e", 2)
            assert len(await following) == 2

    asyncio.run(scenario())


def test_the_next_host_is_asked_when_one_is_down(etcd: EtcdServer) -> None:
    put_replica(etcd, "f", 1)

    async def scenario() -> None:
        async with watching(EtcdSource(f"etcd://127.0.0.1:{free_port()},{etcd.host}/f")) as reader:
            assert len(await reader.next()) == 1
            put_replica(etcd, "f", 2)
            assert len(await reader.next()) == 2

    asyncio.run(scenario())


def test_a_killed_etcd_fails_the_watch_and_a_new_watch_finds_the_list(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as etcd:
        put_replica(etcd, "g", 1)
        source = EtcdSource(f"etcd://{etcd.host}/g")

        async def scenario() -> None:
            async with watching(source) as reader:
                await reader.next()
                following = asyncio.create_task(reader.next())
                await asyncio.sleep(0.05)
                etcd.stop()
                with pytest.raises(DiscoveryFailed, match=etcd.host):
                    await following
            async with watching(source) as reader:
                with pytest.raises(DiscoveryFailed, match=etcd.host):
                    await reader.next()
            await asyncio.to_thread(etcd.start)
            async with watching(source) as reader:
                assert len(await reader.next()) == 1

        asyncio.run(scenario())


def test_an_etcd_that_lost_its_data_yields_an_empty_list_before_what_has_registered_again(tmp_path: Path) -> None:
    """Also if the changes were seen by the watch alone; a later watch does not repeat the empty list."""
    with etcd_server(tmp_path) as etcd:
        put_replica(etcd, "i", 1)
        source = EtcdSource(f"etcd://{etcd.host}/i")

        async def scenario() -> None:
            async with watching(source) as reader:
                await reader.next()
                put_replica(etcd, "i", 2)
                assert len(await reader.next()) == 2
            etcd.stop()
            etcd.forget()
            await asyncio.to_thread(etcd.start)
            put_replica(etcd, "i", 2)
            async with watching(source) as reader:
                assert await reader.next() == ()
                assert urls(await reader.next()) == ["http://127.0.0.1:2"]
            async with watching(source) as reader:
                assert len(await reader.next()) == 1

        asyncio.run(scenario())


def test_more_keys_than_the_limit_are_an_error(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.web.registry.etcd_client.MAX_KEYS", 2)
    for port in (1, 2, 3):
        put_replica(etcd, "h", port)

    async def scenario() -> None:
        async with watching(EtcdSource(f"etcd://{etcd.host}/h")) as reader:
            with pytest.raises(DiscoveryFailed, match="more than 2 keys"):
                await reader.next()

    asyncio.run(scenario())


@for_each(("text", "message"), [
    ("etcd://h/", "no prefix of keys"), ("etcd:///p", "should look like etcd://127.0.0.1:2379/chairlift/replicas"),
    ("etcd://h/p?wait=3", "unknown option 'wait'"), ("etcd://h/p?weight=x", "weight must be a number, got 'x'"),
    ("etcd://h/p?tls=maybe", "must be true or false, got 'maybe'"),
    ("etcd://h/p?ca_file=/nowhere/ca.pem", "cannot read the TLS files /nowhere/ca.pem"),
])  # fmt: skip
def test_urls_that_are_not_valid(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EtcdSource(text)
