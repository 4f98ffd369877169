"""etcd_client.py: what a real etcd answers, and answers that are nonsense."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.etcd_client import EtcdChange, EtcdClient, EtcdKey, etcd_client_config, parse_etcd_url
from chairlift.web.registry.json_client import JSONClient, JSONResponse
from support_services_processes import EtcdServer, etcd_server
from support_shares import for_each

URL = parse_etcd_url("etcd://h/p")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def test_keys_leases_and_changes(etcd: EtcdServer) -> None:
    async def scenario() -> None:
        url = parse_etcd_url(f"etcd://{etcd.host}/p")
        async with JSONClient(etcd_client_config(url)) as http:
            client = EtcdClient(http, url)
            assert await client.list_keys("/p/") == ((), 1)
            lease = await client.grant_lease(20)
            await client.put("/p/ä", b"\x00\xff", lease)
            keys, revision = await client.list_keys("/p/")
            assert keys == (EtcdKey("/p/ä", b"\x00\xff", lease),)
            assert await client.lease_of("/p/ä") == lease and await client.lease_of("/p/x") is None
            newest = etcd.put("/p/b", "1")
            assert await client.lease_of("/p/b") == 0
            assert await client.renew_lease(lease)
            async with client.watch("/p/", revision + 1, idle_seconds=5) as changes:
                assert await anext(changes) == EtcdChange(revision=newest)
                assert await anext(changes) == EtcdChange(puts=(EtcdKey("/p/b", b"1"),), revision=newest)
                await client.revoke_lease(lease)
                assert await anext(changes) == EtcdChange(deletes=("/p/ä",), revision=newest + 1)
            await client.revoke_lease(lease)  # one that has ended is no error
            assert not await client.renew_lease(lease)
            with pytest.raises(DiscoveryFailed, match="lease not found"):
                await client.put("/p/c", b"1", lease)
            newest = etcd.put("/p/b", "2")
            etcd.compact(newest)
            async with client.watch("/p/", 1, idle_seconds=5) as changes:
                while not (change := await anext(changes)).is_compacted:
                    assert change == EtcdChange(revision=newest)

    asyncio.run(scenario())


def test_a_cluster_with_users_needs_a_user_and_its_password(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n", encoding="utf-8")

    async def scenario(etcd: EtcdServer) -> None:
        url = parse_etcd_url(f"etcd://{etcd.host}/p?user=root&password_file={password}")
        async with JSONClient(etcd_client_config(url)) as http:
            client = EtcdClient(http, url)
            lease = await client.grant_lease(20)
            await client.put("/p/a", b"1", lease)
            client._headers = {"authorization": "expired.1"}
            keys, revision = await client.list_keys("/p/")
            assert [each.key for each in keys] == ["/p/a"]
            async with client.watch("/p/", revision + 1, idle_seconds=5) as changes:
                assert await anext(changes) == EtcdChange(revision=revision)
                await client.revoke_lease(lease)
                assert await anext(changes) == EtcdChange(deletes=("/p/a",), revision=revision + 1)
            password.write_text("wrong", encoding="utf-8")
            with pytest.raises(DiscoveryFailed, match="etcd does not accept the user 'root'"):
                await EtcdClient(http, url).list_keys("/p/")
            password.unlink()
            with pytest.raises(DiscoveryFailed, match="cannot read the password file"):
                await EtcdClient(http, url).list_keys("/p/")
            with pytest.raises(DiscoveryFailed, match="status 4"):
                await EtcdClient(http, URL).list_keys("/p/")

    with etcd_server(tmp_path) as etcd:
        etcd.call("/v3/auth/user/add", {"name": "root", "password": "secret"})
        etcd.call("/v3/auth/role/add", {"name": "root"})
        etcd.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        etcd.call("/v3/auth/enable", {})
        asyncio.run(scenario(etcd))


def test_a_user_and_a_password_need_each_other() -> None:
    with pytest.raises(ConfigError, match=r"the options user and password_file of .* need each other"):
        parse_etcd_url("etcd://h/p?user=root")


class FakeJSON:
    """A client that returns one answer."""

    def __init__(self, body: Any, status: int = 200) -> None:
        self._response = JSONResponse(status, body)

    async def call(self, *_: Any, **__: Any) -> JSONResponse:
        return self._response


@for_each(("body", "message"), [
    ("text", "etcd answers /v3/kv/range with status 200: text"), ({}, "nonsense instead of a range: KeyError"),
    ({"header": {"revision": "x"}}, "ValueError"), ({"header": {"revision": "1"}, "kvs": [{}]}, "KeyError"),
    ({"header": {"revision": "1"}, "kvs": [{"key": "!"}]}, "Error"), ({"kvs": 7}, "TypeError"),
    ({"header": {"revision": "1"}, "kvs": [{"key": "/w=="}]}, "UnicodeDecodeError"),
])  # fmt: skip
def test_a_range_that_is_nonsense(body: Any, message: str) -> None:
    with pytest.raises(DiscoveryFailed, match=message):
        asyncio.run(EtcdClient(FakeJSON(body), URL).list_keys("/p/"))  # type: ignore[arg-type]


def test_leases_that_are_nonsense() -> None:
    client = EtcdClient(FakeJSON({"result": 1}), URL)  # type: ignore[arg-type]
    for call in (client.grant_lease(3), client.renew_lease(1)):
        with pytest.raises(DiscoveryFailed, match="etcd answers nonsense"):
            asyncio.run(call)
    failing = EtcdClient(FakeJSON({"error": "denied"}, 403), URL)  # type: ignore[arg-type]
    for other in (failing.grant_lease(3), failing.revoke_lease(1)):
        with pytest.raises(DiscoveryFailed, match="denied"):
            asyncio.run(other)
