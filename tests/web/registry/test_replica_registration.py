"""ReplicaRegistration: register, renew, lose, register again, deregister; with a scripted registry and a real etcd."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.discovery import Discovery
from chairlift.router.discovery.etcd import EtcdSource
from chairlift.web.registry import replica_registration
from chairlift.web.registry.etcd_registry import EtcdRegistry
from chairlift.web.registry.replica_record import ReplicaRecord
from chairlift.web.registry.replica_registration import ReplicaRegistration
from support_discovery import eventually, urls
from support_services_processes import etcd_server


def make_record(url: str) -> ReplicaRecord:
    return ReplicaRecord(url=url, weight=1.0, models=("m",), version="", zone="", instance="i")


class ScriptedRegistry:
    """A registry that follows a script: True, False (lost) or an error for each renewal."""

    name, lease_seconds = "the registry", 0.03

    def __init__(self, *renewals: bool | Exception, failures: int = 0) -> None:
        self.calls: list[str] = []
        self._renewals, self._failures = list(renewals), failures
        self.on_renew: Callable[[], None] = lambda: None
        self.hang = False

    async def register(self, record: ReplicaRecord) -> None:
        self.calls.append(f"register {record.url}")
        if self._failures:
            self._failures -= 1
            raise DiscoveryFailed("it is down")

    async def renew(self) -> bool:
        self.calls.append("renew")
        self.on_renew()
        result = self._renewals.pop(0) if self._renewals else True
        if isinstance(result, Exception):
            raise result
        return result

    async def deregister(self) -> None:
        self.calls.append("deregister")
        if self.hang:
            await asyncio.Event().wait()

    async def close(self) -> None:
        self.calls.append("close")


def run(registry: ScriptedRegistry, until: Callable[[], bool], clock: FakeClock | None = None) -> list[str]:
    """Run a registration until a condition holds, then stop it; return the calls of the registry."""

    async def scenario() -> None:
        task = ReplicaRegistration(registry, make_record, rng=random.Random(1), clock=clock)
        assert not task.is_registered
        task.start("http://h:1")
        await eventually(until)
        await task.stop()
        assert not task.is_registered
        await task.stop()

    asyncio.run(scenario())
    return registry.calls


def test_it_registers_renews_and_deregisters_once() -> None:
    registry = ScriptedRegistry()
    calls = run(registry, lambda: registry.calls.count("renew") == 2)
    assert calls == ["register http://h:1", "renew", "renew", "deregister", "close"]


def test_a_registry_that_is_down_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    registry = ScriptedRegistry(failures=2)
    calls = run(registry, lambda: "renew" in registry.calls)
    assert calls[:4] == ["register http://h:1"] * 3 + ["renew"]
    assert caplog.text.count("cannot register at the registry: it is down") == 2


def test_a_lost_lease_is_registered_again(caplog: pytest.LogCaptureFixture) -> None:
    registry = ScriptedRegistry(True, False)
    calls = run(registry, lambda: registry.calls.count("register http://h:1") == 2)
    assert calls[:4] == ["register http://h:1", "renew", "renew", "register http://h:1"]
    assert "is lost, this replica registers again: the registry does not have it any more" in caplog.text


def test_a_renewal_that_fails_is_repeated_until_the_lease_is_over(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    registry = ScriptedRegistry(True, *[DiscoveryFailed("it is down")] * 3)
    registry.on_renew = lambda: clock.advance(0.0101)
    calls = run(registry, lambda: registry.calls.count("register http://h:1") == 2, clock)
    assert calls[:5] == ["register http://h:1", *["renew"] * 3, "register http://h:1"]
    assert caplog.text.count("cannot renew the registration") == 1
    assert "it was not renewed within 0.03 s: it is down" in caplog.text


def test_an_internal_error_does_not_end_the_registration(caplog: pytest.LogCaptureFixture) -> None:
    registry = ScriptedRegistry(ZeroDivisionError("a bug"))
    run(registry, lambda: registry.calls.count("register http://h:1") == 2)
    assert "internal error" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_registry_that_hangs_does_not_keep_the_drain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica_registration, "DEREGISTER_SECONDS", 0.02)
    registry = ScriptedRegistry()
    registry.hang = True
    assert run(registry, lambda: len(registry.calls) > 0)[-2:] == ["deregister", "close"]
    assert "which removes this replica after 0.03 s: no answer within 0.02 s" in caplog.text


def test_stop_without_start_does_nothing() -> None:
    registry = ScriptedRegistry()
    asyncio.run(ReplicaRegistration(registry, make_record, rng=random.Random(1)).stop())
    assert registry.calls == []


@pytest.mark.full
def test_a_replica_is_seen_within_2_s_and_one_that_dies_leaves_within_its_lease(tmp_path: Path) -> None:
    """Also after etcd was killed, with and without its data: the list stays, and changes are seen again."""

    async def scenario() -> None:
        address = f"etcd://{etcd.host}/replicas"
        discovery = Discovery([EtcdSource(address)], lambda _: None, rng=random.Random(1), empty_grace_seconds=30)
        following = asyncio.create_task(discovery.run())
        replicas = [
            ReplicaRegistration(EtcdRegistry(f"{address}?ttl=2"), make_record, rng=random.Random(seed))
            for seed in range(3)
        ]
        for port, each in enumerate(replicas[:2], 1):
            each.start(f"http://127.0.0.1:{port}")
        both = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
        await eventually(lambda: urls(discovery.endpoints) == both, seconds=2)

        task = replicas[1]._task
        assert task is not None
        task.cancel()  # the process dies: nothing renews its lease
        await eventually(lambda: urls(discovery.endpoints) == both[:1], seconds=2 + 1.5)

        etcd.stop()
        await eventually(lambda: discovery.statuses()[0].state == "down")
        assert urls(discovery.endpoints) == both[:1]
        await asyncio.to_thread(etcd.start)
        replicas[2].start("http://127.0.0.1:3")
        await eventually(lambda: urls(discovery.endpoints) == [both[0], "http://127.0.0.1:3"])
        assert discovery.statuses()[0].state == "up"

        etcd.stop()
        etcd.forget()
        await asyncio.to_thread(etcd.start)
        keys = ["/replicas/127.0.0.1:1", "/replicas/127.0.0.1:3"]
        await eventually(lambda: list(etcd.keys("/replicas/")) == keys)  # both registered again
        await eventually(lambda: discovery.statuses()[0].state == "up")
        assert urls(discovery.endpoints) == [both[0], "http://127.0.0.1:3"]

        await replicas[2].stop()
        await eventually(lambda: urls(discovery.endpoints) == both[:1], seconds=1)
        await replicas[0].stop()
        await replicas[1].stop()  # closes its connections
        following.cancel()
        await asyncio.wait([following])

    with etcd_server(tmp_path) as etcd:
        asyncio.run(scenario())
