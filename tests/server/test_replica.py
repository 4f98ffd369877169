"""Replica: the state and functions that the routes share."""

import asyncio
import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, ModelNotFound, QueueFull, RateLimited
from chairlift.core.host.resource_monitor import ResourceMonitor
from chairlift.core.load_report import ReplicaState
from chairlift.server import replica as module
from chairlift.server.config import ServerConfig
from chairlift.server.replica import Replica
from chairlift.web.admission import AdmissionLimits
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.tenant_limits import TenantLimits
from support_config import make_server_config
from support_process import TIMEOUT_SECONDS
from support_replica import with_replica
from support_server import run
from support_services import fake_service
from support_shares import for_each


@for_each(("name", "expected"), [
    ("", "a"), ("a", "a"), ("b", "b"), ("b:latest", "b"), ("org/a", "a"), ("/models/a", "a"), ("org/a:latest", "a"),
])  # fmt: skip
def test_a_model_has_names_and_aliases(name: str, expected: str) -> None:
    def check(replica: Replica) -> None:
        assert replica.resolve_model(name) == expected

    with_replica(check, aliases=("org/a", "/models/a"))


@for_each("name", ["c", "a:7b", "/models", "org/a/", " a"])
def test_no_other_name_is_the_model(name: str) -> None:
    def check(replica: Replica) -> None:
        with pytest.raises(ModelNotFound, match=r"served are a, b$"):
            replica.resolve_model(name)

    with_replica(check, aliases=("org/a", "/models/a"))


def test_ids_for_the_engine_begin_with_the_requests_own() -> None:
    def check(replica: Replica) -> None:
        ids = [replica.new_engine_request_id("mine") for _ in range(100)]
        assert len(set(ids)) == 100 and all(each.startswith("mine.") for each in ids)

    with_replica(check)


def test_fields_without_effect_are_named_or_refused() -> None:
    def check_ignored(replica: Replica) -> None:
        assert replica.ignored_fields_header(()) == []
        assert replica.ignored_fields_header(("tools[0].x/a~1b/not",)) == [
            (b"x-ignored-parameters", b"tools[0].x/a~1b/not")
        ]
        assert replica.ignored_fields_header(("store", "a\r\nb: c")) == [(b"x-ignored-parameters", b"store, a??b??c")]

    def check_strict(replica: Replica) -> None:
        with pytest.raises(InvalidRequest, match="store") as caught:
            replica.ignored_fields_header(("store",))
        assert caught.value.details["param"] == "store"

    with_replica(check_ignored)
    with_replica(check_strict, reject_unknown_fields=True)


@pytest.mark.parametrize(("header", "timeout", "result"), [
    (None, None, None), (None, 3.0, 3.0), (b"1500", None, 1.5), (b"1500", 3.0, 1.5), (b"5000", 3.0, 3.0),
])  # fmt: skip
def test_the_shorter_timeout_counts(header: bytes | None, timeout: float | None, result: float | None) -> None:
    headers = [] if header is None else [(b"x-request-timeout-ms", header)]
    with_replica(lambda replica: _equal(replica.timeout({"headers": headers}, timeout), result))


def _equal(actual: Any, other: Any) -> None:
    assert actual == other


def test_it_stops_its_engine_and_says_so() -> None:
    async def check(replica: Replica) -> None:
        assert (await replica.load()).state is ReplicaState.READY
        await replica.close()
        assert replica.lifecycle.state is ReplicaState.STOPPED

    with_replica(check)


def test_gauges_are_kept_whatever_one_of_them_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULSE_SECONDS", 0.001)
    faults: list[Exception] = [QueueFull(1, 1), RuntimeError("a mistake"), RuntimeError("again")]

    async def check(replica: Replica) -> None:
        cache_state = replica.service.client.cache_state

        def fail_first() -> Any:
            if faults:
                raise faults.pop(0)
            return cache_state()

        monkeypatch.setattr(replica.service.client, "cache_state", fail_first)
        task = asyncio.create_task(replica.update_gauges_forever())
        while (page := (await replica.metrics_page())[0]).find(b'chairlift_kv_cache_blocks{state="free"} 128.0') < 0:
            assert not task.done()
            await asyncio.sleep(0.001)
        assert b"chairlift_ready 1.0" in page
        while not (memory := replica.reporter.report(await replica.load()).memory_ratio):
            await asyncio.sleep(0.001)  # Linux alone reports it
        assert 0 < memory < 1
        task.cancel()

    with_replica(check)
    assert not faults and [record.message for record in caplog.records if record.exc_info] == [
        "the gauges cannot be read"
    ]


def test_gauges_go_on_while_the_engine_hangs_and_one_question_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PULSE_SECONDS", 0.001)
    hang, questions = threading.Event(), list[int]()

    async def check(replica: Replica) -> None:
        cache_state = replica.service.client.cache_state

        def wait() -> Any:
            questions.append(1)
            hang.wait(TIMEOUT_SECONDS)
            return cache_state()

        monkeypatch.setattr(replica.service.client, "cache_state", wait)
        for _ in range(3):
            await replica._update_gauges()
        page = (await replica.metrics_page())[0]
        assert b"chairlift_ready 1.0" in page and b'chairlift_process_memory_bytes{process="api"}' in page
        assert questions == [1] and b'chairlift_kv_cache_blocks{state="free"}' not in page
        hang.set()
        while b'chairlift_kv_cache_blocks{state="free"} 128.0' not in (await replica.metrics_page())[0]:
            await replica._update_gauges()

    with_replica(check)


@pytest.mark.parametrize("device", ["", "cpu", "cuda:1"])
def test_the_gpu_of_the_engines_device_is_measured(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, ResourceMonitor]] = []
    monkeypatch.setattr(ResourceMonitor, "watch_gpus", lambda self, device: made.append((device, self)))
    replica, service = Replica(make_server_config("a")), fake_service()
    client = SimpleNamespace(
        info=dataclasses.replace(service.client.info, device=device), watch_steps=lambda sink: None, restarts=0,
    )  # fmt: skip
    replica.attach_service(dataclasses.replace(service, client=client), lambda: None, 2048)  # type: ignore[arg-type]
    assert made == [(device, replica.resources)]
    service.client.close()


def test_the_metrics_wait_for_no_engine() -> None:
    """Other calls to an engine that hangs share the default threads of the event loop."""

    async def check(replica: Replica) -> None:
        hang = threading.Event()
        waiting = [asyncio.create_task(asyncio.to_thread(hang.wait, TIMEOUT_SECONDS)) for _ in range(64)]
        try:
            assert b"chairlift_ready" in (await replica.metrics_page())[0]
        finally:
            hang.set()
            await asyncio.gather(*waiting)

    with_replica(check)


def test_limits_are_taken_over_and_nothing_else() -> None:
    async def scenario() -> Replica:
        replica = Replica(ServerConfig(served_names=("a",)))
        replica.reload_limits(HttpConfig(
            body_timeout=1, admission=AdmissionLimits(max_waiting_requests=2),
            tenant=TenantLimits(tenant_max_open_requests=1),
        ))  # fmt: skip
        replica.tenants.begin("t")
        with pytest.raises(RateLimited):
            replica.tenants.begin("t")
        await replica.close()
        return replica

    config = run(scenario()).config.http
    assert config.body_timeout == 30
    assert (config.admission.max_waiting_requests, config.tenant.tenant_max_open_requests) == (2, 1)
