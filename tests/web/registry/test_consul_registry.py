"""consul_registry.py: a replica's service with its TTL check, in the fake that py-consul drives, too."""

import asyncio
import random

import pytest

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.consul import ConsulSource
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.web.registry.consul_registry import ConsulRegistry
from chairlift.web.registry.replica_record import ReplicaRecord
from chairlift.web.registry.replica_registration import ReplicaRegistration
from support_discovery import watching
from support_services_consul import fake_consul
from support_services_processes import free_port


def record(**fields: object) -> ReplicaRecord:
    known = {"url": "http://10.0.0.7:8000", "weight": 2.5, "models": ("m", "n"), "version": "v1", "zone": "eu-1"}
    return ReplicaRecord(**{**known, "instance": "i-1", **fields})  # type: ignore[arg-type]


def test_the_service_has_a_ttl_check_and_the_records_metadata() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            registry = ConsulRegistry(f"consul://{fake.address}/llm?tag=gpu,eu")
            await registry.register(record())
            (service,) = fake.services.values()
            assert service.body == {
                "ID": "llm-10.0.0.7:8000", "Name": "llm", "Tags": ["gpu", "eu"], "Address": "10.0.0.7", "Port": 8000,
                "Meta": {"url": "http://10.0.0.7:8000", "weight": "2.5", "models": "m,n", "kind": "chairlift",
                         "version": "v1", "zone": "eu-1", "instance": "i-1"},
                "Check": {"CheckID": "service:llm-10.0.0.7:8000", "Name": "replica renews its registration",
                          "TTL": "30s", "Status": "passing", "DeregisterCriticalServiceAfter": "60s"},
            }  # fmt: skip
            assert await registry.renew()
            await registry.register(record(url="https://host"))
            assert [each.body["Port"] for each in fake.services.values()] == [8000, 443]
            await registry.deregister()
            await registry.deregister()
            assert list(fake.services) == ["llm-10.0.0.7:8000"]
            await registry.close()

    asyncio.run(scenario())


def test_a_check_that_consul_forgot_is_a_lost_lease() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            registry = ConsulRegistry(f"consul://{fake.address}/llm")
            await registry.register(record())
            fake.services.clear()
            assert not await registry.renew()
            await registry.deregister()
            await registry.close()

    asyncio.run(scenario())


def test_a_registered_replica_is_found_and_leaves_when_it_is_not_renewed() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            kept, dead = (
                ReplicaRegistration(
                    ConsulRegistry(f"consul://{fake.address}/llm?ttl=1"),
                    lambda url: record(url=url), rng=random.Random(1),
                )
                for _ in range(2)
            )  # fmt: skip
            kept.start("http://127.0.0.1:1")
            dead.start("http://127.0.0.1:2")
            expected = Endpoint(
                url="http://127.0.0.1:1", weight=2.5, models=("m", "n"), kind=ReplicaKind.CHAIRLIFT, version="v1",
                zone="eu-1",
            )  # fmt: skip
            async with watching(ConsulSource(f"consul://{fake.address}/llm")) as reader:
                await reader.until(lambda snapshot: len(snapshot) == 2, 2)
                assert dead._task is not None
                dead._task.cancel()
                await reader.until(lambda snapshot: snapshot == (expected,), 5)  # on a busy machine not at once
                await kept.stop()
                await reader.until(lambda snapshot: snapshot == (), 5)
            await dead.stop()

    asyncio.run(scenario())


def test_a_consul_that_is_down_is_a_typed_error() -> None:
    async def scenario() -> None:
        registry = ConsulRegistry(f"consul://127.0.0.1:{free_port()}/llm")
        with pytest.raises(DiscoveryFailed, match=r"127\.0\.0\.1"):
            await registry.register(record())
        await registry.close()

    asyncio.run(scenario())


def test_a_ttl_that_is_none() -> None:
    with pytest.raises(ConfigError, match="seconds between 1 and 3600"):
        ConsulRegistry("consul://h/llm?ttl=0.5")
