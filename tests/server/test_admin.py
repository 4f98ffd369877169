"""What operators ask: load, metrics, and the administration."""

import asyncio
import hashlib
from typing import Any

from chairlift.web.auth import ADMIN, KeyRing, Principal
from support_server import CHAT, HELLO, opened, run
from support_services import Gate, fake_service

KEY = {"authorization": "Bearer ops"}


def ring() -> KeyRing:
    return KeyRing({hashlib.sha256(b"ops").digest(): Principal("ops", frozenset({ADMIN}))})


def test_a_request_is_found_while_it_waits_while_it_rides_and_after() -> None:
    gate = Gate()

    async def ask() -> None:
        async with opened(fake_service(hook=gate, max_running_requests=1), keys=ring()) as door:

            async def told(name: str) -> Any:
                return await door.http.get(f"/admin/requests/{name}", headers=KEY)

            assert (await told("nobody")).status_code == 404
            first, second = (
                asyncio.create_task(door.http.post(CHAT, json=HELLO, headers={"x-request-id": name}))
                for name in ("first", "second")
            )
            await asyncio.to_thread(gate.reached.wait, 30)
            while len(door.replica.llm._dispatcher().open_ids) < 2:
                await asyncio.sleep(0.001)
            asked = asyncio.create_task(told("second"))
            await asyncio.sleep(0.05)
            gate.opened.set()
            assert (await asked).json()["request_id"] == "second"
            assert (await first).status_code == (await second).status_code == 200
            record = (await told("second")).json()
            assert record["outcome"] == "length" and record["usage"] == [13, 5, 12]
            assert record["events"][0][0] == "queued" and "finished" in str(record["events"])

    run(ask())


def test_the_state_is_that_of_the_engine() -> None:
    async def ask() -> None:
        async with opened(fake_service(), keys=ring()) as door:
            await door.http.post(CHAT, json=HELLO)
            told = (await door.http.get("/admin/state", headers=KEY)).json()
            assert told["integrity_errors"] == [] and told["scheduler"]["finished_by_reason"]["length"] == 1
            assert told["cache"]["allocated_blocks"] == 0 and told["cache"]["cached_blocks"] > 0

    run(ask())


def test_draining_is_told_on_and_refuses_what_comes() -> None:
    async def ask() -> None:
        async with opened(fake_service(), keys=ring()) as door:
            assert (await door.http.post("/admin/drain", headers=KEY)).status_code == 202
            assert door.drained == [1]
            answer = await door.http.post(CHAT, json=HELLO)
            assert answer.status_code == 503 and answer.headers["connection"] == "close"
            assert (await door.http.get("/load")).json()["state"] == "draining"
            assert (await door.http.get("/livez")).status_code == 200

    run(ask())


def test_the_load_is_a_report() -> None:
    async def ask() -> None:
        async with opened(fake_service()) as door:
            await door.http.post(CHAT, json=HELLO)
            told = (await door.http.get("/load")).json()
            assert told["state"] == "ready" and told["finished_requests"] == 1 and told["output_tokens"] == 5
            assert told["admission_waiting_requests"] == 0 and told["expected_wait_seconds"] == 0

    run(ask())


def test_a_door_that_is_starting_answers_for_itself() -> None:
    async def ask() -> None:
        async with opened(None, keys=ring()) as door:
            assert (await door.http.get("/livez")).status_code == 200
            for path in ("/readyz", "/health", "/v1/models", "/admin/state"):
                assert (await door.http.get(path, headers=KEY)).status_code == 503, path
            assert (await door.http.get("/load")).json()["state"] == "starting"
            assert (await door.http.get("/metrics")).status_code == 200
            assert (await door.http.get("/admin/requests/x", headers=KEY)).status_code == 404

    run(ask())
