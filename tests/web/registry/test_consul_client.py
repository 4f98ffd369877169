"""consul_client.py: the requests that it makes, and failures; tests/router/discovery/test_consul.py has the answers."""

import asyncio

import pytest
from aiohttp import web

from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.consul_client import ConsulClient, consul_client_config, parse_consul_url
from chairlift.web.registry.json_client import JSONClient
from support_services_consul import fake_consul


def test_names_are_quoted_and_a_query_without_index_does_not_wait() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            url = parse_consul_url(f"consul://{fake.address}/s")
            async with JSONClient(consul_client_config(url)) as http:
                consul = ConsulClient(http)
                assert (await consul.list_healthy("a/b c", tags=("x", "y"), datacenter="dc1"))[0] == ()
                assert fake.requests == [
                    ("GET", "/v1/health/service/a/b c", {"passing": "true", "tag": "x", "dc": "dc1"})
                ]
                assert not await consul.pass_check("service:no/such")
                await consul.deregister("no/such")

    asyncio.run(scenario())


def test_failures_are_typed_errors() -> None:
    async def scenario() -> None:
        async with fake_consul() as fake:
            url = parse_consul_url(f"consul://{fake.address}/s")
            async with JSONClient(consul_client_config(url)) as http:
                consul = ConsulClient(http)
                fake.fault = web.Response(status=403, text="denied")
                for call in (consul.register({"Name": "a"}), consul.pass_check("c"), consul.deregister("s")):
                    with pytest.raises(DiscoveryFailed, match="status 403: denied"):
                        await call

    asyncio.run(scenario())
