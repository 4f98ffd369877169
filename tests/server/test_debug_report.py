"""GET /admin/debug of a replica: what explains its behaviour, without texts and keys, even if the engine hangs."""

import asyncio
import hashlib
import io
import logging
import threading
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.core.errors import EngineDead
from chairlift.observability.logging import LogConfig, configure
from chairlift.protocol.response_schemas import DEBUG
from chairlift.server import debug_report
from chairlift.server.live import engine_reader
from chairlift.web.auth.api_keys import KeyRing
from chairlift.web.auth.principal import ADMIN, Principal
from support_server import CHAT, HELLO, InProcessServer, open_server, run
from support_services import Gate, fake_service

KEY = {"authorization": "Bearer ops-secret"}
KEYS = KeyRing({hashlib.sha256(b"ops-secret").digest(): Principal("ops", frozenset({ADMIN}))})
PROMPT = "zebra crossing"


async def debug(server: InProcessServer) -> dict[str, Any]:
    response = await server.http.get("/admin/debug", headers=KEY)
    assert response.status_code == 200
    report: dict[str, Any] = response.json()
    Draft202012Validator(DEBUG).validate(report)
    assert PROMPT not in response.text and "ops-secret" not in response.text
    return report


def test_open_requests_are_described_without_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, asked = Gate(), threading.Event()
    service = fake_service(hook=gate, max_running_requests=1)
    ask = service.client.scheduler_state
    monkeypatch.setattr(service.client, "scheduler_state", lambda: asked.set() or ask())

    async def scenario() -> None:
        async with open_server(service, keys=KEYS) as server:
            body = {**HELLO, "max_tokens": 50, "messages": [{"role": "user", "content": PROMPT}]}
            tasks = []
            for name in ("first", "second"):
                post = server.http.post(CHAT, json=body, headers={"x-request-id": name})
                tasks.append(asyncio.create_task(post))
                await asyncio.to_thread(gate.reached.wait, 30)  # the first one runs before the second is sent
            while len(server.replica.llm._dispatcher().open_ids) < 2:
                await asyncio.sleep(0.001)
            pending = asyncio.create_task(debug(server))
            await asyncio.to_thread(asked.wait, 30)
            await asyncio.sleep(0.02)
            gate.opened.set()
            report = await pending
            sequences = {each["request_id"]: each for each in report["engine"]["scheduler"]["sequences"]}
            assert sequences.keys() & {"second.1", "first.0"}
            assert all(each["prompt_tokens"] > len(PROMPT) and each["age_seconds"] >= 0 for each in sequences.values())
            assert report["admission"]["open_requests"] == 2
            await asyncio.gather(*tasks)
            after = await debug(server)
            assert [each["request_id"] for each in after["finished_requests"]] == ["first", "second"]
            assert after["recent_steps"] and after["recent_steps"][-1]["num_sequences"] == 1

    run(scenario())


def test_the_engine_is_checked_and_the_log_is_sent() -> None:
    async def scenario() -> None:
        configure(LogConfig(), io.StringIO())
        logging.getLogger("chairlift.x").warning("it was late")
        async with open_server(fake_service(), keys=KEYS) as server:
            server.replica.shown_settings = {"port": 1}
            await server.http.post(CHAT, json=HELLO)
            report = await debug(server)
            assert (report["service"], report["state"], report["models"]) == ("replica", "ready", ["fake"])
            assert report["engine"]["integrity_errors"] == [] and report["engine"]["cache"]["cached_blocks"] > 0
            assert report["settings"] == {"port": 1} and report["log"][-1]["message"] == "it was late"

    run(scenario())


def test_a_broken_block_is_reported() -> None:
    async def scenario() -> None:
        service = fake_service()
        async with open_server(service, keys=KEYS) as server:
            await server.http.post(CHAT, json=HELLO)
            service.client.loop.scheduler.cache.pool.allocate(1)  # type: ignore[attr-defined]
            assert (await debug(server))["engine"]["integrity_errors"]

    run(scenario())


def test_a_very_large_cache_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug_report, "MAX_CHECKED_BLOCKS", 127)

    async def scenario() -> None:
        async with open_server(fake_service(), keys=KEYS) as server:
            engine = (await debug(server))["engine"]
            assert engine["integrity_skipped"] == "the cache has 128 blocks, the limit is 127"
            assert "integrity_errors" not in engine

    run(scenario())


def test_a_hanging_engine_is_waited_for_once_and_only_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_reader, "ENGINE_SECONDS", 0.02)
    gate = Gate()

    async def scenario() -> None:
        service = fake_service(hook=gate)
        questions = []
        ask = service.client.scheduler_state
        monkeypatch.setattr(service.client, "scheduler_state", lambda: questions.append(1) or ask())
        async with open_server(service, keys=KEYS) as server:
            request = asyncio.create_task(server.http.post(CHAT, json=HELLO))
            await asyncio.to_thread(gate.reached.wait, 30)
            for _ in range(3):
                report = await debug(server)
                assert "did not answer within 0.02 s" in report["engine"]["error"]
                assert report["state"] == "ready" and report["processes"]["api"]["open_files"] > 0
            assert questions == [1]
            gate.opened.set()
            await request
            monkeypatch.setattr(engine_reader, "ENGINE_SECONDS", 30.0)
            assert (await debug(server))["engine"]["integrity_errors"] == []

    run(scenario())


def test_a_server_whose_engine_starts_or_has_died_answers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with open_server(None, keys=KEYS) as server:
            report = await debug(server)
            assert report["state"] == "starting" and report["engine"] == {"error": "the engine has not started"}
        service = fake_service()

        def fail() -> Any:
            raise EngineDead("the engine died")

        monkeypatch.setattr(service.client, "scheduler_state", fail)
        async with open_server(service, keys=KEYS) as server:
            assert (await debug(server))["engine"]["error"] == "the engine died"

    run(scenario())


def test_the_report_needs_an_admin_key() -> None:
    async def scenario() -> None:
        async with open_server(fake_service(), keys=KEYS) as server:
            assert (await server.http.get("/admin/debug")).status_code == 401
        async with open_server(fake_service()) as server:
            assert (await server.http.get("/admin/debug")).status_code == 404

    run(scenario())
