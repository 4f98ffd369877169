"""diagnose: faults that are caused on real replicas and routers are found, and healthy ones have no finding."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.cli.diagnosis.diagnosis import diagnose
from chairlift.cli.diagnosis.finding import ERROR, WARNING
from chairlift.cli.diagnosis.server_reader import Keys, ServerReader
from chairlift.cli.diagnosis.server_snapshot import Part, ServerSnapshot
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_plan import StepPlan
from chairlift.router.endpoint import ReplicaKind
from chairlift.router.proxy.upstream import UpstreamConfig
from chairlift.server.live import engine_reader
from chairlift.web.auth.api_keys import read_keys
from support_diagnosis import KEYS, USER_KEY, VALID, checks, diagnosed, live_replica, snapshot
from support_replica_set import probed
from support_router import CHAT, HELLO, running_router
from support_router_app import served_replica
from support_server import run
from support_services import Gate, fake_service, wait_until

BODY = {**HELLO, "model": "fake"}
USER = {"authorization": f"Bearer {USER_KEY}"}


def closed_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.full
def test_a_healthy_replica_that_has_served_has_no_finding() -> None:
    async def scenario() -> None:
        async with live_replica(fake_service()) as live, httpx.AsyncClient() as client:
            assert (await client.post(live.url + CHAT, json=BODY, headers=USER)).status_code == 200
            await live.update_gauges()
            report = (await diagnosed(live.url)).as_json()
            assert (report["problems"], report["ok"], report["service"]) == ([], True, "replica")

    run(scenario())


def test_wrong_and_missing_keys_are_distinguished_from_a_server_that_is_down() -> None:
    async def scenario() -> None:
        async with live_replica(fake_service()) as live:
            wrong = checks(await diagnosed(live.url, Keys(api="wrong", admin="wrong")))
            assert wrong == {("key_rejected", ERROR), ("admin_key", WARNING)}
            assert checks(await diagnosed(live.url, Keys(api=USER_KEY))) == {("admin_key", WARNING)}
            without = await diagnosed(live.url, Keys())
            assert checks(without) == {("no_key", ERROR), ("admin_key", WARNING)}
            assert all("was given" in each.what for each in without.findings)
        down = diagnose(ServerReader(closed_url(), VALID), VALID, 0.1)
        assert checks(down) == {("unreachable", ERROR)} and down.as_json()["service"] == "down"
        assert not down.as_json()["ok"]

    run(scenario())


def test_a_full_cache_and_an_engine_that_stands_still_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_reader, "ENGINE_SECONDS", 0.05)
    everyone, gate = Gate(), Gate(after=3)
    config = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=8, block_size=16)

    def hook(plan: StepPlan, stage: str) -> None:
        everyone(plan, stage)
        gate(plan, stage)

    async def scenario() -> None:
        service = fake_service(config, hook=hook)
        async with live_replica(service) as live, httpx.AsyncClient(timeout=30) as client:
            prompt = [{"role": "user", "content": "x" * 90}]
            tasks = [
                asyncio.create_task(client.post(live.url + CHAT, json={**BODY, "messages": prompt}, headers=USER))
                for _ in range(3)
            ]
            await asyncio.to_thread(wait_until, lambda: len(service.client._open) == 3)
            everyone.opened.set()  # one of them fills the cache, the others wait
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.1)  # what the engine has answered is in the gauges
            live.replica.telemetry.metrics.gauge("kv_cache_usage_ratio").set(1.0)  # its reader waits for the engine
            diagnosis = await diagnosed(live.url, seconds=0.3)
            gate.opened.set()
            await asyncio.gather(*tasks)
            assert {("hang", ERROR), ("cache_full", WARNING)} <= checks(diagnosis)
            (hang,) = [each for each in diagnosis.findings if each.check == "hang"]
            assert "did not answer within 0.05 s" in hang.what

    run(scenario())


def test_a_drained_replica_is_not_ready() -> None:
    async def scenario() -> None:
        async with live_replica(fake_service()) as live:
            live.replica.lifecycle.drain()
            diagnosis = await diagnosed(live.url)
            assert checks(diagnosis) == {("not_ready", ERROR)} and "draining" in diagnosis.findings[0].what

    run(scenario())


def test_through_a_router_its_replicas_are_checked_and_lost_ones_named() -> None:
    async def scenario() -> None:
        lost = closed_url()
        async with (
            live_replica(fake_service()) as live,
            running_router([live.url, lost], keys=KEYS, kind=ReplicaKind.CHAIRLIFT, models=("fake",)) as running,
        ):
            replicas, now = running.router.replicas, running.router.clock.now()
            for _ in range(5):
                replicas.apply_probe(live.url, probed(), now)
                replicas.apply_probe(lost, probed(is_success=False), now)
            diagnosis = await diagnosed(running.url)
            assert checks(diagnosis) == {("replica_state", WARNING), ("replica_not_read", WARNING)}
            assert all(lost in each.what + each.server for each in diagnosis.findings)
            report = diagnosis.as_json()
            assert report["ok"] and sorted(report["replicas"]) == sorted([live.url, lost])
            replicas.drain(live.url, running.router.clock.now())
            assert ("no_replica", ERROR) in checks(await diagnosed(running.url))

    run(scenario())


@pytest.mark.full
def test_a_router_with_the_replicas_key_reads_the_reports_that_they_do_not_give(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("replica-admin", encoding="ascii")
    keys = read_keys(None, {"CHAIRLIFT_API_KEY": USER_KEY, "CHAIRLIFT_ADMIN_KEY": "replica-admin"})
    upstream = UpstreamConfig(admin_key_file=file)

    async def scenario() -> None:
        async with (
            served_replica(keys) as url,
            running_router([url], keys=KEYS, kind=ReplicaKind.CHAIRLIFT, upstream=upstream) as running,
        ):
            diagnosis = await diagnosed(running.url)
            assert diagnosis.snapshots[1].object("debug")["service"] == "replica"
            assert not [each for each in diagnosis.findings if each.server == url]
        async with served_replica(keys) as url, running_router([url], keys=KEYS, kind=ReplicaKind.CHAIRLIFT) as running:
            diagnosis = await diagnosed(running.url)
            assert not diagnosis.snapshots[1].object("debug")
            assert [each.check for each in diagnosis.findings if each.server == url] == ["admin_key"]

    run(scenario())


def test_a_replica_of_another_server_is_not_read_and_gets_no_key() -> None:
    async def scenario() -> None:
        async with (
            live_replica(fake_service()) as live,
            running_router([live.url], keys=KEYS, kind=ReplicaKind.OPENAI, models=("fake",)) as running,
        ):
            diagnosis = await diagnosed(running.url)
            assert [each.url for each in diagnosis.snapshots] == [running.url]

    run(scenario())


def test_a_replica_that_does_not_answer_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    debug = {"replicas": [{"replica_id": f"http://{name}", "kind": "chairlift"} for name in ("silent", "good")]}
    reads = list[str]()

    def read(reader: ServerReader, names: Sequence[str] = ()) -> ServerSnapshot:
        reads.append(reader.url)
        made = replace(snapshot(debug=debug if "server" in reader.url else {}, at=float(len(reads))), url=reader.url)
        silent = {name: Part(path=part.path, error="late") for name, part in made.parts.items()}
        return replace(made, parts=silent) if "silent" in reader.url else made

    monkeypatch.setattr(ServerReader, "read", read)
    result = diagnose(ServerReader("http://server", Keys()), Keys(), 0.0)
    assert sorted(reads) == ["http://good", "http://good", "http://server", "http://server", "http://silent"]
    assert [each.url for each in result.snapshots] == ["http://server", "http://silent", "http://good"]
    assert [each.server for each in result.findings if each.check == "replica_not_read"] == ["http://silent"]


class Scripted(ServerReader):
    """Returns given snapshots; `load` lists the replicas."""

    def __init__(self, *snapshots: ServerSnapshot) -> None:
        super().__init__("http://server", Keys())
        self.snapshots = list(snapshots)

    def read(self, names: Sequence[str] = ()) -> ServerSnapshot:
        return self.snapshots.pop(0)


@pytest.mark.parametrize("debug", [
    {"engine": "a string"}, {"processes": [1]}, {"service": "router", "autoscaler": [1], "sources": 5},
])  # fmt: skip
def test_an_answer_of_other_types_is_a_finding_and_ends_nothing(debug: dict[str, Any]) -> None:
    result = diagnose(Scripted(snapshot(debug=debug), snapshot(debug=debug, at=3.0)), Keys(), 0.0)
    assert {"not_understood"} == {each.check for each in result.findings} and result.snapshots[0].object(
        "debug"
    ) == debug


def test_a_route_that_fails_later_is_an_error_and_what_it_answered_is_kept() -> None:
    first, again = snapshot("steps_total 5"), snapshot(at=3.0)
    failed = Part(path="/metrics", error="no complete answer within 8 s")
    again = replace(again, parts={"load": again.parts["load"], "metrics": failed})
    result = diagnose(Scripted(first, again), Keys(), 0.0)
    assert [(each.check, each.level) for each in result.findings] == [("partial", ERROR)]
    assert b"steps_total 5" in result.snapshots[0].parts["metrics"].body


def test_a_replica_at_an_address_that_is_no_url_is_named_and_not_read() -> None:
    debug = {"replicas": [{"replica_id": "unix:/x", "kind": "chairlift"}]}
    result = diagnose(Scripted(snapshot(debug=debug), snapshot(debug=debug, at=3.0)), Keys(), 0.0)
    assert "replica_not_read" in [each.check for each in result.findings] and len(result.snapshots) == 1
