"""etcd_registry.py: a replica's entry in a real etcd: lease, renewal, loss and removal."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.etcd_registry import EtcdRegistry
from chairlift.web.registry.replica_record import ReplicaRecord
from support_services_processes import EtcdServer, etcd_server, free_port


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def record(**fields: object) -> ReplicaRecord:
    known = {"url": "http://10.0.0.7:8000", "weight": 2.0, "models": ("m", "alias"), "version": "v1", "zone": "eu-1"}
    return ReplicaRecord(**{**known, "instance": "i-1", **fields})  # type: ignore[arg-type]


def lease_seconds(etcd: EtcdServer) -> list[int]:
    leases = etcd.call("/v3/lease/leases", {}).get("leases", ())
    return [int(etcd.call("/v3/lease/timetolive", {"ID": each["ID"]})["grantedTTL"]) for each in leases]


def test_the_key_has_the_record_and_ends_with_its_lease(etcd: EtcdServer) -> None:
    async def scenario() -> None:
        registry = EtcdRegistry(f"etcd://{etcd.host}/a?ttl=7")
        assert (registry.lease_seconds, registry.name) == (7, f"etcd at {etcd.host}")
        await registry.register(record())
        ((key, value),) = etcd.keys("/a/").items()
        assert key == "/a/10.0.0.7:8000"
        assert json.loads(value) == {
            "url": "http://10.0.0.7:8000", "weight": 2.0, "models": ["m", "alias"], "kind": "chairlift",
            "version": "v1", "zone": "eu-1", "instance": "i-1",
        }  # fmt: skip
        assert lease_seconds(etcd) == [7]
        assert await registry.renew()
        await registry.deregister()
        assert etcd.keys("/a/") == {} and lease_seconds(etcd) == []
        await registry.deregister()  # a second time does nothing
        await registry.close()

    asyncio.run(scenario())


def test_the_default_lease_is_30_seconds_and_a_fraction_is_rounded_up() -> None:
    assert EtcdRegistry("etcd://h/p").lease_seconds == 30
    assert EtcdRegistry("etcd://h/p?ttl=2.1").lease_seconds == 3


def test_an_unrenewed_entry_leaves_within_its_lease(etcd: EtcdServer) -> None:
    async def scenario() -> None:
        registry = EtcdRegistry(f"etcd://{etcd.host}/b?ttl=1")
        await registry.register(record())
        async with asyncio.timeout(4):
            while etcd.keys("/b/"):
                await asyncio.sleep(0.1)
        assert not await registry.renew()
        await registry.deregister()
        await registry.close()

    asyncio.run(scenario())


def test_a_lost_lease_is_reported_and_a_deleted_key_is_set_again(
    etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        registry = EtcdRegistry(f"etcd://{etcd.host}/c")
        await registry.register(record())
        etcd.delete("/c/10.0.0.7:8000")
        assert await registry.renew() and list(etcd.keys("/c/")) == ["/c/10.0.0.7:8000"]
        assert "the key of this replica was deleted" in caplog.text
        etcd.revoke_all_leases()
        assert not await registry.renew()
        assert etcd.keys("/c/") == {}
        await registry.close()

    asyncio.run(scenario())


def test_a_replica_that_restarts_replaces_its_entry_and_the_old_process_does_not_remove_it(
    etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        old, new = (EtcdRegistry(f"etcd://{etcd.host}/d") for _ in range(2))
        await old.register(record())
        await new.register(record(instance="i-2"))
        assert await old.renew() and await old.renew()
        assert caplog.text.count("another process is registered as http://10.0.0.7:8000") == 1
        await old.deregister()
        assert [json.loads(value)["instance"] for value in etcd.keys("/d/").values()] == ["i-2"]
        await new.deregister()
        for each in (old, new):
            await each.close()

    asyncio.run(scenario())


def test_an_etcd_that_is_down_is_a_typed_error() -> None:
    async def scenario() -> None:
        registry = EtcdRegistry(f"etcd://127.0.0.1:{free_port()}/e")
        with pytest.raises(DiscoveryFailed, match=r"127\.0\.0\.1"):
            await registry.register(record())
        await registry.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("ttl", ["0", "x", "nan", "1e9"])
def test_a_lease_that_is_none(ttl: str) -> None:
    with pytest.raises(ConfigError, match=r"the option ttl of .* must be seconds between 1 and 3600"):
        EtcdRegistry(f"etcd://h/p?ttl={ttl}")
