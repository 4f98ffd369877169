"""Routes for operators: /load, /metrics and /admin."""

import asyncio
import hashlib
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.protocol.response_schemas import STATE
from chairlift.server.live import engine_reader
from chairlift.web.auth.api_keys import KeyRing
from chairlift.web.auth.principal import ADMIN, Principal
from support_server import CHAT, HELLO, open_server, run
from support_services import Gate, fake_service

KEY = {"authorization": "Bearer ops"}


def admin_key_ring() -> KeyRing:
    return KeyRing({hashlib.sha256(b"ops").digest(): Principal("ops", frozenset({ADMIN}))})


def test_a_request_is_found_while_waiting_while_running_and_afterwards() -> None:
    gate = Gate()

    async def scenario() -> None:
        async with open_server(fake_service(hook=gate, max_running_requests=1), keys=admin_key_ring()) as server:

            async def data(name: str) -> Any:
                return await server.http.get(f"/admin/requests/{name}", headers=KEY)

            assert (await data("unknown")).status_code == 404
            first, second = (
                asyncio.create_task(server.http.post(CHAT, json=HELLO, headers={"x-request-id": name}))
                for name in ("first", "second")
            )
            await asyncio.to_thread(gate.reached.wait, 30)
            while len(server.replica.llm._dispatcher().open_ids) < 2:
                await asyncio.sleep(0.001)
            record_request = asyncio.create_task(data("second"))
            await asyncio.sleep(0.05)
            gate.opened.set()
            assert (await record_request).json()["request_id"] == "second"
            assert (await first).status_code == (await second).status_code == 200
            record = (await data("second")).json()
            assert record["outcome"] == "length" and record["usage"] == [13, 5, 12]
            assert record["events"][0][0] == "queued" and "finished" in str(record["events"])

    run(scenario())


def test_the_state_is_that_of_the_engine() -> None:
    async def scenario() -> None:
        async with open_server(fake_service(), keys=admin_key_ring()) as server:
            await server.http.post(CHAT, json=HELLO)
            data = (await server.http.get("/admin/state", headers=KEY)).json()
            assert data["integrity_errors"] == [] and data["scheduler"]["finished_by_reason"]["length"] == 1
            assert data["cache"]["allocated_blocks"] == 0 and data["cache"]["cached_blocks"] > 0
            assert isinstance(data["startup_report"], dict) and "error" not in data
            Draft202012Validator(STATE).validate(data)

    run(scenario())


def test_an_engine_that_hangs_is_reported_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_reader, "ENGINE_SECONDS", 0.02)
    gate = Gate()

    async def scenario() -> None:
        async with open_server(fake_service(hook=gate), keys=admin_key_ring()) as server:
            request = asyncio.create_task(server.http.post(CHAT, json=HELLO))
            await asyncio.to_thread(gate.reached.wait, 30)
            response = await server.http.get("/admin/state", headers=KEY)
            data = response.json()
            Draft202012Validator(STATE).validate(data)
            assert response.status_code == 200 and data["state"] == "ready" and data["restarts"] == 0
            assert data["error"].startswith("the engine did not answer within 0.02 s")
            assert "scheduler" not in data and isinstance(data["startup_report"], dict)
            record = await server.http.get("/admin/requests/unknown", headers=KEY)
            error = record.json()["error"]
            assert (record.status_code, error["code"], record.headers["retry-after"]) == (503, "unavailable", "2")
            assert "the engine did not answer" in error["message"]
            gate.opened.set()
            await request
            monkeypatch.setattr(engine_reader, "ENGINE_SECONDS", 30.0)
            data = (await server.http.get("/admin/state", headers=KEY)).json()
            assert "error" not in data and "active_requests" in data["scheduler"]

    run(scenario())


def test_an_open_request_has_the_state_of_each_of_its_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    service = fake_service()
    choices = [{"choice": index, "state": "pending", "wait_reason": "prefix"} for index in (0, 1)]
    state = {
        "states": {"two.0": "pending", "two.1": "decoding"}, "wait_reasons": {"two.0": "budget"},
        "choices": {"two.0": choices, "other.0": choices},
    }  # fmt: skip
    monkeypatch.setattr(service.client, "scheduler_state", lambda: state)

    async def scenario() -> None:
        async with open_server(service, keys=admin_key_ring()) as server:
            found = (await server.http.get("/admin/requests/two", headers=KEY)).json()
        assert found["sequences"] == {
            "two.0": {"state": "pending", "wait_reason": "budget", "choices": choices},
            "two.1": {"state": "decoding", "wait_reason": None},
        }

    run(scenario())


def test_draining_is_reported_and_rejects_new_requests() -> None:
    async def scenario() -> None:
        async with open_server(fake_service(), keys=admin_key_ring()) as server:
            assert (await server.http.post("/admin/drain", headers=KEY)).status_code == 202
            assert server.drained == [1]
            response = await server.http.post(CHAT, json=HELLO)
            assert response.status_code == 503 and response.headers["connection"] == "close"
            assert (await server.http.get("/load")).json()["state"] == "draining"
            assert (await server.http.get("/livez")).status_code == 200

    run(scenario())


def test_the_load_is_a_report() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server:
            await server.http.post(CHAT, json=HELLO)
            data = (await server.http.get("/load")).json()
            assert data["state"] == "ready" and data["finished_requests"] == 1 and data["output_tokens"] == 5
            assert data["admission_waiting_requests"] == 0 and data["expected_wait_seconds"] == 0

    run(scenario())


def test_a_server_that_is_starting_responds() -> None:
    async def scenario() -> None:
        async with open_server(None, keys=admin_key_ring()) as server:
            assert (await server.http.get("/livez")).status_code == 200
            for path in ("/readyz", "/health", "/v1/models", "/admin/state"):
                assert (await server.http.get(path, headers=KEY)).status_code == 503, path
            assert (await server.http.get("/load")).json()["state"] == "starting"
            assert (await server.http.get("/metrics")).status_code == 200
            assert (await server.http.get("/admin/requests/x", headers=KEY)).status_code == 404

    run(scenario())
