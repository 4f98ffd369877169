"""ReplicaService: its state follows the engine's; errors and cancels of the start, and a certificate's expiry."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chairlift.core.errors import ModelError
from chairlift.core.load_report import ReplicaState
from chairlift.llm.text_service import TextService
from chairlift.server.server_process import ReplicaService, ServerParts
from chairlift.web.auth.credentials import Credentials
from chairlift.web.service.listen_address import ListenAddress
from support_certificates import CertificateAuthority
from support_config import make_server_config
from support_services import fake_service


def parts(start: Any, lines: list[str] | None = None, **options: Any) -> ServerParts:
    return ServerParts(
        config=make_server_config("m", **options), listening=ListenAddress(port=0), tls=None,
        read_credentials=Credentials,
        start=start, engine_pid=lambda _: None, budget=2048, max_running=4, print_line=(lines or []).append,
    )  # fmt: skip


async def drain() -> None: ...


def test_a_service_is_ready_when_its_engine_is_and_fails_when_that_is_dead() -> None:
    async def scenario() -> None:
        service = ReplicaService(parts(fake_service), Credentials(), drain)
        assert service.lifecycle.state is ReplicaState.STARTING
        assert list(await service.start()) == list(service.replica.service.client.info.startup_report)
        assert service.lifecycle.state is ReplicaState.READY and service.failure == ""
        engine = service.replica.service
        engine.client.close()
        assert service.replica.service.client.state is not ReplicaState.READY
        await service.close()

    asyncio.run(scenario())


def test_the_error_of_the_start_reaches_the_process() -> None:
    def start() -> TextService:
        raise ModelError("no such model")

    async def scenario() -> None:
        service = ReplicaService(parts(start), Credentials(), drain)
        with pytest.raises(ModelError, match="no such model"):
            await service.start()
        await service.close()

    asyncio.run(scenario())


def test_an_engine_whose_start_was_cancelled_is_closed_once_it_has_started() -> None:
    closed: list[bool] = []

    client = SimpleNamespace(close=lambda: closed.append(True))

    async def scenario() -> None:
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def start() -> TextService:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
            return cast("TextService", SimpleNamespace(client=client))

        service = ReplicaService(parts(start), Credentials(), drain)
        starting = asyncio.create_task(cast("Any", service.start()))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        await service.close()
        assert not closed
        release.set()
        async with asyncio.timeout(10):
            while not closed:
                await asyncio.sleep(0.001)

    asyncio.run(scenario())


def test_no_line_of_throughput_without_an_interval() -> None:
    async def scenario(interval: float) -> int:
        service = ReplicaService(parts(fake_service, log_stats_interval=interval), Credentials(), drain)
        tasks = list(service.background())
        for each in tasks:
            each.close()
        await service.close()
        return len(tasks)

    assert asyncio.run(scenario(0)) + 1 == asyncio.run(scenario(10))


def test_the_expiry_of_the_certificate_is_a_metric_and_follows_a_reload(tmp_path: Path) -> None:
    name = "tls_certificate_expiry_timestamp_seconds"

    def expiry(service: ReplicaService) -> float:
        page = service.replica.telemetry.metrics.render().decode().splitlines()
        return float(next(line for line in page if line.startswith(f"chairlift_{name} ")).rpartition(" ")[2])

    async def scenario() -> None:
        authority = CertificateAuthority(tmp_path, "ca")
        certificate, key = authority.issue("server", days=1)
        listening = ListenAddress(port=0, certificate=certificate, key=key)
        service = ReplicaService(replace(parts(fake_service), listening=listening), Credentials(), drain)
        before = expiry(service)
        assert before == listening.certificate_expiry() > 0
        authority.issue("server", days=3)
        service.reload(None)
        assert expiry(service) - before == pytest.approx(2 * 86_400, abs=60)
        await service.close()
        plain = ReplicaService(parts(fake_service), Credentials(), drain)
        assert expiry(plain) == 0
        await plain.close()

    asyncio.run(scenario())
