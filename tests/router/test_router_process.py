"""run: a router's process becomes ready, probes with connections of their own, reloads, and ends."""

import asyncio
import json
import os
import signal
import ssl
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.router.config import RouterConfig
from chairlift.router.discovery.static import StaticSource
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.consecutive_probes import ProbeConfig
from chairlift.router.health.webhook_notifier import NotifyConfig
from chairlift.router.proxy.upstream import UpstreamConfig
from chairlift.router.router_process import RouterParts, RouterService
from chairlift.web.auth.api_keys import key_line
from chairlift.web.auth.credentials import Credentials
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.listen_address import ListenAddress
from chairlift.web.tenant_limits import TenantLimits
from support_certificates import CertificateAuthority
from support_process import TIMEOUT_SECONDS
from support_router import CHAT, HELLO, Connection, ReceivedRequest, ScriptedReplica, scripted
from support_server import Server, fake_server, router_server, run

FAST = HealthConfig(probes=ProbeConfig(interval_seconds=0.02, start_interval_seconds=0.02, timeout_seconds=1.0))


async def healthy(connection: Connection, request: ReceivedRequest) -> None:
    """Answer probes as vLLM does, and anything else with an object."""
    if request.target == "/readyz":
        await connection.respond({}, 404)
    elif request.target == "/v1/models":
        await connection.respond({"object": "list", "data": [{"id": "m", "object": "model"}]})
    else:
        await connection.respond({"ok": True})


def parts(*replicas: str, **options: Any) -> RouterParts:
    """Return the parts of a router over these replicas."""
    options.setdefault("health", FAST)
    return RouterParts(
        config=RouterConfig(**options), sources=[StaticSource.parse(replicas)], listening=ListenAddress(port=0),
        tls=None, read_credentials=Credentials, print_line=lambda line: None,
    )  # fmt: skip


async def no_drain() -> None:
    """Do nothing."""


class RunningService:
    """A RouterService with its background work."""

    def __init__(self, parts: RouterParts) -> None:
        self.service = RouterService(parts, Credentials(), no_drain)
        self._tasks = [asyncio.create_task(each) for each in self.service.background()]

    async def __aenter__(self) -> RouterService:
        return self.service

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.service.close()


def test_it_is_ready_when_a_replica_is_and_reports_what_it_found() -> None:
    async def scenario() -> None:
        async with scripted(healthy) as replica, RunningService(parts(replica.url)) as service:
            assert service.lifecycle.reason and not service.router.is_ready
            report = dict(await service.start())
            assert report == {"replicas": 1, "models": "m", "policy": "prefix"}
            assert service.lifecycle.reason == "" and service.failure == ""
            assert [each.name for each in service.router.source_statuses()] == ["--replica"]

    run(scenario())


def test_it_starts_without_a_ready_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.router.router_process.START_SECONDS", 0.1)

    async def scenario() -> None:
        async with RunningService(parts("http://127.0.0.1:9")) as service:
            report = dict(await service.start())
            assert report["models"] == "none yet"
            assert report["replicas"] == "1, none of them is ready: requests are rejected until one is"
            assert service.lifecycle.reason == "no replica is ready"

    run(scenario())


def test_every_probe_opens_a_connection_of_its_own() -> None:
    connections: set[object] = set()

    async def scenario() -> None:
        async def script(connection: Connection, request: ReceivedRequest) -> None:
            connections.add(connection._writer)
            await healthy(connection, request)

        async with scripted(script) as replica, RunningService(parts(replica.url)) as service:
            await service.start()
            while len(replica.requests) < 8:
                await asyncio.sleep(0.005)
            assert len(connections) >= 8, "no two requests of probes share a connection"
            session = service._probe_session
        assert session.closed and service.router.upstream.session.closed

    run(scenario())


def test_webhooks_trust_the_cas_of_the_system_and_not_those_of_the_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    system, replicas = CertificateAuthority(tmp_path, "system"), CertificateAuthority(tmp_path, "replicas")
    monkeypatch.setenv("SSL_CERT_FILE", str(system.file))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*system.issue("receiver"))

    async def scenario() -> None:
        async with scripted(healthy) as replica, scripted(healthy, context) as receiver:
            notify, upstream = NotifyConfig(url=receiver.url, max_attempts=1), UpstreamConfig(ca=replicas.file)
            async with RunningService(parts(replica.url, notify=notify, upstream=upstream)):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while not receiver.requests:
                        await asyncio.sleep(0.005)
            assert receiver.requests[0].fields["replica"] == replica.url

    run(scenario())


def test_a_reload_applies_limits_and_reads_the_key_of_the_replicas(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("one\n", encoding="ascii")

    async def scenario() -> None:
        options = {"upstream": UpstreamConfig(key_file=key)}
        async with scripted(healthy) as replica, RunningService(parts(replica.url, **options)) as service:
            await service.start()
            key.write_text("two\n", encoding="ascii")
            service.reload(HttpConfig(tenant=TenantLimits(tenant_requests_per_minute=3)))
            assert service.router.tenants.limits.tenant_requests_per_minute == 3
            replica.requests.clear()
            while not replica.requests:
                await asyncio.sleep(0.005)
            assert replica.requests[-1].headers["authorization"] == "Bearer two"
            key.write_text("", encoding="ascii")
            service.reload(None)
            assert service.router.upstream.key_headers() == {"authorization": "Bearer two"}

    run(scenario())


# -- processes --------------------------------------------------------------------------------------------------------


def wait_for_line(server: Server, text: str) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not any(text in line for line in server.lines):
        assert time.monotonic() < until, server.log
        time.sleep(0.01)


def test_sighup_reads_keys_limits_replica_file_and_the_key_of_the_replicas_again(tmp_path: Path) -> None:
    replicas, keys, replica_key, settings = (tmp_path / name for name in ("r.json", "keys", "rk", "s.yaml"))
    with ExitStack() as stack:
        first, second = (stack.enter_context(fake_server()) for _ in range(2))
        replicas.write_text(json.dumps([{"url": first.url}]), encoding="utf-8")

        def write_keys(*names: str) -> None:
            lines = [key_line(name, "tenant") for name in names] + [key_line("admin", "ops", admin=True)]
            keys.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

        write_keys("old")
        replica_key.write_text("rk1\n", encoding="ascii")
        settings.write_text("tenant_requests_per_minute: 1000\nlog_level: info\n", encoding="utf-8")
        router = stack.enter_context(router_server(
            "--discovery", f"file:{replicas}", "--key-file", str(keys), "--replica-key-file", str(replica_key),
            "--config", str(settings),
        ))  # fmt: skip

        def get(path: str, key: str) -> httpx.Response:
            return httpx.get(router.url + path, headers={"authorization": f"Bearer {key}"}, timeout=TIMEOUT_SECONDS)

        assert get("/v1/models", "old").status_code == 200
        write_keys("new")
        replicas.write_text(json.dumps([{"url": first.url}, {"url": second.url}]), encoding="utf-8")
        settings.write_text("tenant_requests_per_minute: 1\nmax_attempts: 7\n", encoding="utf-8")
        os.kill(router.process.pid, signal.SIGHUP)
        wait_for_line(router, "keys, certificates and limits were read again")
        assert any("the new values of max_attempts apply only after a restart" in line for line in router.lines)
        assert [get("/v1/models", key).status_code for key in ("old", "new")] == [401, 200]
        until = time.monotonic() + TIMEOUT_SECONDS
        while len(get("/admin/replicas", "admin").json()["replicas"]) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        body = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        headers = {"authorization": "Bearer new"}
        statuses = [httpx.post(router.url + CHAT, json=body, headers=headers).status_code for _ in range(2)]
        assert statuses == [200, 429], "the new limit holds"
        settings.write_text("tenant_requests_per_minute: many\n", encoding="utf-8")
        write_keys("newest")
        os.kill(router.process.pid, signal.SIGHUP)
        wait_for_line(router, "the old keys, certificates and limits stay")
        assert [get("/v1/models", key).status_code for key in ("new", "newest")] == [200, 401]
        with httpx.stream("GET", f"{router.url}/admin/live", headers={"authorization": "Bearer admin"}) as stream:
            pieces = stream.iter_bytes()
            assert b"event: hello" in next(pieces)
            assert router.stop() == 0
            list(pieces)  # raises an error if the response is cut
        assert "Traceback" not in router.log


def test_a_router_talks_to_replicas_with_tls_and_serves_a_new_certificate_after_sighup(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, "ca")
    certificate, key = authority.issue("router")
    with fake_server() as replica, router_server(
        "--replica", replica.url, "--tls-cert", str(certificate), "--tls-key", str(key)
    ) as router:  # fmt: skip

        def serial() -> str:
            return ssl.get_server_certificate(("127.0.0.1", router.port), timeout=TIMEOUT_SECONDS)

        before = serial()
        new_certificate, new_key = authority.issue("router2")
        certificate.write_bytes(new_certificate.read_bytes())
        key.write_bytes(new_key.read_bytes())
        os.kill(router.process.pid, signal.SIGHUP)
        wait_for_line(router, "were read again")
        assert serial() != before
        assert router.stop() == 0


def test_open_requests_may_finish_in_a_drain_and_forwarded_ones_too() -> None:
    async def scenario() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(connection: Connection, request: ReceivedRequest) -> None:
            if request.target in (CHAT, "/v1/embeddings"):
                begun.set()
                await go_on.wait()
            await healthy(connection, request)

        async with scripted(slow) as replica:
            await drain_with_open_requests(replica, begun, go_on)

    run(scenario())


async def drain_with_open_requests(replica: ScriptedReplica, begun: asyncio.Event, go_on: asyncio.Event) -> None:
    with ExitStack() as stack:
        router = await asyncio.to_thread(stack.enter_context, router_server("--replica", replica.url))
        async with httpx.AsyncClient(base_url=router.url, timeout=TIMEOUT_SECONDS) as http:
            for path in (CHAT, "/v1/embeddings"):
                begun.clear()
                posting = asyncio.create_task(http.post(path, json=HELLO))
                await begun.wait()
                if path == CHAT:
                    go_on.set()
                    assert (await posting).status_code == 200
                    go_on.clear()
            router.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_for_line, router, "draining: 1 requests")
            assert (await http.get("/readyz")).status_code == 503
            go_on.set()
            assert (await posting).status_code == 200
        assert await asyncio.to_thread(router.wait_for_exit) == 0


def test_the_expiry_of_the_routers_certificate_is_a_metric(tmp_path: Path) -> None:
    async def scenario() -> None:
        certificate, key = CertificateAuthority(tmp_path, "ca").issue("router")
        listening = ListenAddress(port=0, certificate=certificate, key=key)
        service = RouterService(replace(parts(), listening=listening), Credentials(), no_drain)
        page = service.router.telemetry.metrics.render().decode()
        line = next(each for each in page.splitlines() if each.startswith("chairlift_tls_certificate_expiry"))
        assert float(line.rpartition(" ")[2]) == listening.certificate_expiry() > time.time()
        await service.close()

    run(scenario())
