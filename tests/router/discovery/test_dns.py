"""dns.py: addresses and SRV records of a real dnsmasq, their TTL, and names without records."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery import dns as module
from chairlift.router.discovery.dns import DNSSource, srv_weights
from chairlift.router.endpoint import Endpoint
from support_discovery import urls, watching
from support_services_processes import DnsServer, dns_server, free_port
from support_shares import for_each


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DnsServer]:
    with dns_server(tmp_path) as each:
        yield each


def first(text: str) -> tuple[Endpoint, ...]:
    async def scenario() -> tuple[Endpoint, ...]:
        async with watching(DNSSource(text)) as reader:
            return await reader.next()

    return asyncio.run(scenario())


def test_addresses_of_both_kinds_and_changes_after_the_ttl(server: DnsServer) -> None:
    server.start("host-record=llm.test,127.0.0.2,fd00::2", "host-record=llm.test,127.0.0.3", ttl=1)

    async def scenario() -> None:
        async with watching(DNSSource(f"dns://llm.test:8000?nameserver={server.address}")) as reader:
            assert urls(await reader.next()) == [
                "http://127.0.0.2:8000", "http://127.0.0.3:8000", "http://[fd00::2]:8000",
            ]  # fmt: skip
            server.start("host-record=llm.test,127.0.0.3", "host-record=llm.test,127.0.0.4", ttl=1)
            started_at = time.monotonic()
            assert urls(await reader.next()) == ["http://127.0.0.3:8000", "http://127.0.0.4:8000"]
            assert time.monotonic() - started_at < 2

    asyncio.run(scenario())


def test_options_choose_scheme_records_and_fields(server: DnsServer) -> None:
    server.start("host-record=llm.test,127.0.0.2,fd00::2")
    options = f"nameserver={server.address}&records=A&scheme=https&weight=2&models=a&zone=z&version=v"
    assert first(f"dns://llm.test:8000?{options}") == (
        Endpoint(url="https://127.0.0.2:8000", weight=2, models=("a",), zone="z", version="v"),
    )


@pytest.mark.parametrize(("ttl", "bounds", "seconds"), [(3600, (0.01, 0.05), 0.05), (0, (0.03, 9), 0.03)])
def test_the_ttl_is_honoured_within_bounds(
    server: DnsServer, monkeypatch: pytest.MonkeyPatch, ttl: int, bounds: tuple[float, float], seconds: float
) -> None:
    server.start("host-record=llm.test,127.0.0.2", ttl=ttl)
    monkeypatch.setattr(module, "MIN_TTL_SECONDS", bounds[0])
    monkeypatch.setattr(module, "MAX_TTL_SECONDS", bounds[1])
    delays: list[float] = []

    async def sleep(delay: float) -> None:
        delays.append(delay)
        raise InterruptedError

    async def scenario() -> None:
        async with watching(DNSSource(f"dns://llm.test:1?records=A&nameserver={server.address}")) as reader:
            await reader.next()
            with monkeypatch.context() as patch:
                patch.setattr(module.asyncio, "sleep", sleep)
                with pytest.raises(InterruptedError):
                    await reader.next()

    asyncio.run(scenario())
    assert delays == [seconds]


def test_srv_records_of_the_first_priority_with_their_ports_and_weights(server: DnsServer) -> None:
    server.start(
        "host-record=a.test,127.0.0.2", "host-record=b.test,127.0.0.3", "host-record=b.test,127.0.0.4",
        "host-record=c.test,127.0.0.5",
        "srv-host=_llm._tcp.test,a.test,8001,1,10", "srv-host=_llm._tcp.test,b.test,8002,1,30",
        "srv-host=_llm._tcp.test,c.test,8003,2,50",
    )  # fmt: skip
    address = f"dns+srv://_llm._tcp.test?nameserver={server.address}"
    assert first(address) == (
        Endpoint(url="http://127.0.0.2:8001", weight=10), Endpoint(url="http://127.0.0.3:8002", weight=30),
        Endpoint(url="http://127.0.0.4:8002", weight=30),
    )  # fmt: skip
    assert urls(first(address + "&scheme=https")) == ["https://a.test:8001", "https://b.test:8002"]


def test_a_name_without_records_is_an_empty_list_each_time(server: DnsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start("host-record=other.test,127.0.0.2")
    monkeypatch.setattr(module, "NO_RECORDS_SECONDS", 1.0)
    for text in (
        f"dns://llm.test:1?nameserver={server.address}",
        f"dns+srv://_x._tcp.test?nameserver={server.address}",
    ):

        async def scenario(text: str = text) -> None:
            async with watching(DNSSource(text)) as reader:
                assert await reader.next() == ()
                assert await reader.next(3) == ()

        asyncio.run(scenario())


def test_a_name_server_that_is_down_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERY_SECONDS", 0.3)
    with pytest.raises(DiscoveryFailed, match=r"no answer for A of llm\.test"):
        first(f"dns://llm.test:1?nameserver=127.0.0.1:{free_port()}")


@pytest.mark.parametrize(("weights", "expected"), [
    ([], []), ([0, 0], [1, 1]), ([1, 3], [1, 3]), ([0, 5], [0.05, 5]), ([65_535, 6553.5], [1000, 100]),
])  # fmt: skip
def test_srv_weights(weights: list[int], expected: list[float]) -> None:
    assert srv_weights(weights) == pytest.approx(expected)


@for_each(("text", "message"), [
    ("dns://llm.test", "has no port after the host"), ("dns://llm.test:8000/x", "needs a name alone"),
    ("dns://[::1]:8000", "needs a name alone"), ("dns://a..b:80", "a name that is none"),
    ("dns://llm.test:80?nameserver=ns.test", "must be an address and a port, got 'ns.test'"),
    ("dns://llm.test:80?nameserver=127.0.0.1:99999", "must be an address and a port"),
    ("dns://llm.test:80?records=MX", "must be A, AAAA or A,AAAA"),
    ("dns://llm.test:99999", "a host that is none"), ("dns://llm.test:80?nameservers=1", "did you mean nameserver"),
])  # fmt: skip
def test_urls_that_are_not_valid(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DNSSource(text)


def test_name_servers_have_a_port_or_the_default() -> None:
    source = DNSSource("dns://llm.test:80?nameserver=10.0.0.2,[fd00::1]:5353,fd00::2")
    assert source._nameservers == [("10.0.0.2", 53), ("fd00::1", 5353), ("fd00::2", 53)]
