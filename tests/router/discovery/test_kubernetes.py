"""kubernetes.py: EndpointSlices by list and watch; the fake is driven by the `kubernetes` package, too."""

import asyncio
import time
from pathlib import Path
from typing import Any

import kubernetes as kubernetes_package
import pytest
from aiohttp import web

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery import kubernetes as module
from chairlift.router.discovery.endpoint_parser import parse_endpoint
from chairlift.router.discovery.kubernetes import KubernetesSource
from chairlift.router.endpoint import Endpoint
from chairlift.web.registry import kubernetes_client
from support_certificates import CertificateAuthority
from support_discovery import urls, watching
from support_services_kubernetes import FakeKubernetes, endpoint, fake_kubernetes, port
from support_shares import for_each


def source(fake: FakeKubernetes, options: str = "", **fields: Any) -> KubernetesSource:
    return KubernetesSource(f"kubernetes://prod/llm?server={fake.url}{options}", **fields)


def test_the_fake_answers_an_independent_client_as_kubernetes_does() -> None:
    def drive(fake: FakeKubernetes, loop: asyncio.AbstractEventLoop) -> None:
        configuration = kubernetes_package.client.Configuration(host=fake.url)
        with kubernetes_package.client.ApiClient(configuration) as client:
            api = kubernetes_package.client.DiscoveryV1Api(client)
            label = {"label_selector": "kubernetes.io/service-name=llm"}
            first = api.list_namespaced_endpoint_slice("prod", limit=1, **label)
            assert [each.metadata.name for each in first.items] == ["llm-a"] and first.metadata._continue
            rest = api.list_namespaced_endpoint_slice("prod", limit=1, _continue=first.metadata._continue, **label)
            assert [each.metadata.name for each in rest.items] == ["llm-b"] and rest.metadata._continue is None
            assert rest.items[0].endpoints[0].addresses == ["10.0.0.2"] and rest.items[0].ports[0].port == 8000
            asyncio.run_coroutine_threadsafe(fake.put("llm-c", [endpoint("10.0.0.3")]), loop).result(5)
            asyncio.run_coroutine_threadsafe(fake.delete("llm-a"), loop).result(5)
            watch = kubernetes_package.watch.Watch()
            events = []
            for event in watch.stream(
                api.list_namespaced_endpoint_slice, "prod", resource_version=rest.metadata.resource_version,
                timeout_seconds=5, **label,
            ):  # fmt: skip
                events.append((event["type"], event["object"].metadata.name))
                if len(events) == 2:
                    watch.stop()
            assert events == [("ADDED", "llm-c"), ("DELETED", "llm-a")]
            asyncio.run_coroutine_threadsafe(fake.forget_events(), loop).result(5)
            with pytest.raises(kubernetes_package.client.ApiException) as error:
                list(kubernetes_package.watch.Watch().stream(
                    api.list_namespaced_endpoint_slice, "prod", resource_version="1", timeout_seconds=5
                ))  # fmt: skip
            assert error.value.status == 410

    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            await fake.put("llm-a", [endpoint("10.0.0.1")])
            await fake.put("llm-b", [endpoint("10.0.0.2")])
            await fake.put("other", [endpoint("10.0.0.9")], service="other")
            await asyncio.to_thread(drive, fake, asyncio.get_running_loop())

    asyncio.run(scenario())


def test_ready_endpoints_of_all_slices_and_their_changes() -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            await fake.put("llm-a", [endpoint("10.0.0.1", zone="eu-1"), endpoint("fd00::1")])
            await fake.put("llm-b", [endpoint("10.0.0.2")], ports=[port(9000)])
            await fake.put("other", [endpoint("10.0.0.9")], service="other")
            await fake.put("llm-a", [endpoint("10.0.0.8")], namespace="test")
            async with watching(source(fake)) as reader:
                assert await reader.next() == (
                    Endpoint(url="http://10.0.0.1:8000", zone="eu-1"), Endpoint(url="http://[fd00::1]:8000"),
                    Endpoint(url="http://10.0.0.2:9000"),
                )  # fmt: skip
                following, started_at = asyncio.create_task(reader.next()), time.monotonic()
                await fake.put("llm-c", [endpoint("10.0.0.3")])
                assert urls(await following)[-1] == "http://10.0.0.3:8000"
                assert time.monotonic() - started_at < 2
                await fake.delete("llm-a")
                assert urls(await reader.next()) == ["http://10.0.0.2:9000", "http://10.0.0.3:8000"]
                await fake.put("llm-b", [])
                assert urls(await reader.next()) == ["http://10.0.0.3:8000"]

    asyncio.run(scenario())


def test_only_slices_that_changed_are_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(fields: dict[str, Any]) -> Endpoint:
        parsed.append(fields["url"])
        return parse_endpoint(fields)

    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            for number in range(3):
                await fake.put(f"llm-{number}", [endpoint(f"10.0.0.{number}")])
            async with watching(source(fake)) as reader:
                await reader.next()
                monkeypatch.setattr(module, "parse_endpoint", parse)
                await fake.put("llm-1", [endpoint("10.0.0.9")])
                assert urls(await reader.next()) == [f"http://10.0.0.{number}:8000" for number in (0, 9, 2)]

    asyncio.run(scenario())
    assert parsed == ["http://10.0.0.9:8000"]


@for_each(("conditions", "is_used"), [
    ({"ready": True}, True), ({"ready": None}, True), ({"ready": False}, False),
    ({"ready": True, "serving": True, "terminating": False}, True),
    ({"ready": False, "serving": True, "terminating": True}, False),
    ({"ready": True, "serving": True, "terminating": True}, False),  # publishNotReadyAddresses
    ({"ready": True, "serving": False}, False),
])  # fmt: skip
def test_conditions(conditions: dict[str, bool | None], is_used: bool) -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            await fake.put("llm-a", [endpoint("10.0.0.1", **conditions), endpoint("10.0.0.2")])
            async with watching(source(fake)) as reader:
                assert ("http://10.0.0.1:8000" in urls(await reader.next())) is is_used

    asyncio.run(scenario())


@for_each(("options", "url", "message"), [
    ("&port=grpc", "http://10.0.0.1:9000", ""), ("&port=8000", "http://10.0.0.1:8000", ""),
    ("&port=http&scheme=https", "https://10.0.0.1:8000", ""),
    ("&port=web", "", r"no port 'web'; its TCP ports are: http \(8000\), grpc \(9000\)"),
    ("&port=dns", "", "no port 'dns'"), ("", "", r"several ports, and \?port= names none"),
])  # fmt: skip
def test_the_port_has_a_name_or_a_number(options: str, url: str, message: str) -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            ports = [port(8000), port(9000, "grpc"), {"name": "dns", "port": 53, "protocol": "UDP"}]
            await fake.put("llm-a", [endpoint("10.0.0.1")], ports=ports)
            async with watching(source(fake, options)) as reader:
                if message:
                    with pytest.raises(DiscoveryFailed, match=message):
                        await reader.next()
                else:
                    assert urls(await reader.next()) == [url]

    asyncio.run(scenario())


def test_an_expired_version_is_listed_again() -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            await fake.put("llm-a", [endpoint("10.0.0.1")])
            async with watching(source(fake)) as reader:
                await reader.next()  # the generator stands between list and watch
                await fake.put("llm-b", [endpoint("10.0.0.2")])
                await fake.forget_events()
                assert len(await reader.next()) == 2
                await fake.put("llm-c", [endpoint("10.0.0.3")])
                assert len(await reader.next()) == 3
            assert len([each for each in fake.requests if "watch" not in each]) == 2

    asyncio.run(scenario())


def test_a_watch_that_is_answered_with_410_is_listed_again_but_not_forever() -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            await fake.put("llm-a", [endpoint("10.0.0.1")])
            fake.num_gone_watches = 2
            async with watching(source(fake)) as reader:
                await reader.next()
                following = asyncio.create_task(reader.next())
                while fake.num_watches < 3:
                    await asyncio.sleep(0.01)
                await fake.put("llm-b", [endpoint("10.0.0.2")])
                assert len(await following) == 2
            fake.num_gone_watches = 1000
            async with watching(source(fake)) as reader:
                await reader.next()
                with pytest.raises(DiscoveryFailed, match="the resource version 102 of a new list has expired"):
                    await reader.next()
            assert fake.num_watches == 6

    asyncio.run(scenario())


def test_a_watch_goes_on_from_the_last_bookmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bookmarks a quiet service's version expires, and each end of a watch would list everything again."""
    monkeypatch.setattr(kubernetes_client, "WATCH_SECONDS", 1.0)

    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            await fake.put("llm-a", [endpoint("10.0.0.1")])
            async with watching(source(fake)) as reader:
                await reader.next()
                following = asyncio.create_task(reader.next())
                await asyncio.sleep(0.05)
                await fake.put("other", [endpoint("10.0.0.9")], service="other")
                await fake.bookmark()
                bookmark = str(fake.version)
                await asyncio.sleep(0.1)  # until it is sent
                await fake.forget_events()
                while fake.num_watches < 2:
                    await asyncio.sleep(0.01)
                await fake.put("llm-a", [endpoint("10.0.0.2")])
                assert urls(await following) == ["http://10.0.0.2:8000"]
            assert fake.requests[2]["resourceVersion"] == bookmark
            assert len([each for each in fake.requests if "watch" not in each]) == 1

    asyncio.run(scenario())


def test_a_silent_watch_is_opened_again() -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            await fake.put("llm-a", [endpoint("10.0.0.1")])
            async with watching(source(fake, idle_seconds=1.05)) as reader:
                await reader.next()
                following = asyncio.create_task(reader.next())
                while fake.num_watches < 2:
                    await asyncio.sleep(0.01)
                await fake.put("llm-a", [])
                assert await following == ()

    asyncio.run(scenario())


def test_a_watch_that_is_cut_is_a_failure_after_which_the_next_sees_all_changes() -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            await fake.put("llm-a", [endpoint("10.0.0.1")])
            one = source(fake)
            async with watching(one) as reader:
                await reader.next()
                following = asyncio.create_task(reader.next())
                while not fake.open_watches:
                    await asyncio.sleep(0.01)
                fake.cut_watches()
                with pytest.raises(DiscoveryFailed, match=fake.url):
                    await following
            await fake.put("llm-a", [endpoint("10.0.0.2")])
            async with watching(one) as reader:
                assert urls(await reader.next()) == ["http://10.0.0.2:8000"]

    asyncio.run(scenario())


def test_a_watch_that_ends_at_once_is_a_failure_and_not_a_busy_loop() -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            fake.watch_ends_at_once = True
            async with watching(source(fake)) as reader:
                assert await reader.next() == ()
                with pytest.raises(DiscoveryFailed, match="ended the watch at once"):
                    await reader.next()
            assert fake.num_watches == 1

    asyncio.run(scenario())


def test_pages_of_a_list_are_joined() -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            fake.page_size = 2
            for number in range(5):
                await fake.put(f"llm-{number}", [endpoint(f"10.0.0.{number}")])
            async with watching(source(fake)) as reader:
                assert urls(await reader.next()) == [f"http://10.0.0.{number}:8000" for number in range(5)]

    asyncio.run(scenario())


def test_the_token_file_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first", encoding="utf-8")

    async def scenario() -> None:
        async with fake_kubernetes("first") as fake:
            await fake.put("llm-a", [endpoint("10.0.0.1")])
            async with watching(source(fake, f"&token_file={token}")) as reader:
                await reader.next()
                fake.token = "second"
                token.write_text("second\n", encoding="utf-8")
                following = asyncio.create_task(reader.next())
                await asyncio.sleep(0.05)
                await fake.delete("llm-a")
                assert await following == ()
            assert fake.tokens == ["Bearer first", "Bearer second"]
            token.unlink()
            async with watching(source(fake, f"&token_file={token}")) as reader:
                with pytest.raises(DiscoveryFailed, match="cannot read the token file"):
                    await reader.next()

    asyncio.run(scenario())


@for_each(("status", "text", "message"), [
    (403, '{"message": "forbidden"}', "answers with status 403"), (500, "x", "status 500"), (200, "x", "malformed"),
    (200, "{}", "the list of EndpointSlices is malformed: KeyError"), (200, "[]", "malformed: TypeError"),
    (200, '{"metadata": {"resourceVersion": "1"}, "items": [{}]}', "malformed: KeyError"),
    (200, '{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a"}, "endpoints": [7]}]}',
     "an EndpointSlice is malformed: AttributeError"),
])  # fmt: skip
def test_lists_that_are_nonsense(status: int, text: str, message: str) -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake:
            fake.list_fault = web.Response(status=status, text=text)
            async with watching(source(fake)) as reader:
                with pytest.raises(DiscoveryFailed, match=message):
                    await reader.next()

    asyncio.run(scenario())


@pytest.mark.parametrize(("event", "message"), [
    ("no json", "a line of the stream is not JSON"), ("{}", "an event of the watch is malformed: KeyError"),
    ('{"type": "ODD", "object": {"metadata": {"resourceVersion": "1"}}}', "unknown type 'ODD'"),
    ('{"type": "ERROR", "object": {"code": 500, "message": "etcd is down"}}', "the watch failed: etcd is down"),
    ("[]", "malformed: TypeError"),
])  # fmt: skip
def test_events_that_are_nonsense(event: str, message: str) -> None:
    async def scenario() -> None:
        async with fake_kubernetes() as fake, watching(source(fake)) as reader:
            await reader.next()
            await fake.send_raw_event(event)
            with pytest.raises(DiscoveryFailed, match=message):
                await reader.next()

    asyncio.run(scenario())


def test_the_pods_cluster_is_the_default(tmp_path: Path) -> None:
    CertificateAuthority(tmp_path, "cluster").file.rename(tmp_path / "ca.crt")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::5", "KUBERNETES_SERVICE_PORT": "6443"}
    made = KubernetesSource("kubernetes://prod/llm?port=http", environ=environ, service_account=tmp_path)
    assert made._config.base_urls == ("https://[fd00::5]:6443",)
    assert (made._config.token_file, made._config.ca_file) == (tmp_path / "token", tmp_path / "ca.crt")


@for_each(("text", "message"), [
    ("kubernetes://prod/llm", "needs a pod of the cluster"), ("kubernetes://prod", "should look like kubernetes://"),
    ("kubernetes://prod:8/llm", "should look like"), ("kubernetes://prod/a/b", "should look like"),
    ("kubernetes://prod/llm?server=ftp://x", "must look like https"),
    ("kubernetes://prod/llm?prot=http", r"did you mean port\?"),
])  # fmt: skip
def test_urls_that_are_not_valid(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KubernetesSource(text, environ={})
