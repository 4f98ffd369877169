"""Batches of a server process: they go on after a shutdown or a kill, and other requests do not wait for them."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from support_batch_api import BatchClient, batch_lines
from support_server import COMPLETIONS, MODEL, Server, fake_server, run

NUM_REQUESTS = 120
ENGINE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.005)


def in_folder(path: Path, **limits: Any) -> dict[str, Any]:
    return {"files": {"files_folder": str(path / "state"), "max_batch_requests": 8, **limits}}


async def stopped_within(server: Server, signal_number: int) -> str:
    """Begin a batch, and end the server by a signal when a part of it has responses; returns the batch's id."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        client = BatchClient(http)
        batch_id = await client.create(batch_lines(NUM_REQUESTS, max_tokens=20))
        while (await client.batch(batch_id))["request_counts"]["completed"] < NUM_REQUESTS // 4:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(server.stop, signal_number)
    return batch_id


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_batch_goes_on_where_the_server_has_ended(tmp_path: Path, signal_number: int) -> None:
    with fake_server(ENGINE, server=in_folder(tmp_path)) as server:
        batch_id = run(stopped_within(server, signal_number))
        if signal_number == signal.SIGTERM:
            assert server.process.returncode == 0, server.log

    [journal] = (tmp_path / "state" / "batches").glob("*/responses.jsonl")
    before = journal.read_bytes()
    num_before = before.count(b"\n")
    assert NUM_REQUESTS // 4 <= num_before < NUM_REQUESTS

    async def scenario(server: Server) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            client = BatchClient(http)
            batch = await client.wait(batch_id)
            assert batch["status"] == "completed"
            assert batch["request_counts"] == {"total": NUM_REQUESTS, "completed": NUM_REQUESTS, "failed": 0}
            entries = await client.entries(batch["output_file_id"])
            assert set(entries) == {f"r{number}" for number in range(NUM_REQUESTS)}
            assert len({entry["response"]["body"]["choices"][0]["text"] for entry in entries.values()}) == 1
            content = (await http.get(f"/v1/files/{batch['output_file_id']}/content")).content
            assert content.startswith(before[: before.rindex(b"\n") + 1]), "no response was computed twice"

    with fake_server(ENGINE, server=in_folder(tmp_path)) as server:
        run(scenario(server))
        assert server.metric("requests_finished_total") <= NUM_REQUESTS - num_before


def test_a_shutdown_lets_open_requests_of_a_batch_finish_and_begins_none(tmp_path: Path) -> None:
    engine = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.02)
    with fake_server(engine, server=in_folder(tmp_path) | {"drain_timeout": 30.0}) as server:
        batch_id = run(stopped_within(server, signal.SIGTERM))
        assert server.process.returncode == 0 and "aborted" not in server.log, server.log
    [journal] = (tmp_path / "state" / "batches").glob("*/responses.jsonl")
    assert journal.read_bytes().count(b"\n") < NUM_REQUESTS and batch_id == journal.parent.name


def test_other_requests_do_not_wait_for_a_batch(tmp_path: Path) -> None:
    """With 4 slots, which the requests of a batch could fill: one is left for the others."""

    async def scenario(server: Server) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            client = BatchClient(http)
            batch_id = await client.create(batch_lines(400, max_tokens=100))
            await client.wait(batch_id, "in_progress")
            while (await client.batch(batch_id))["request_counts"]["completed"] < 4:
                await asyncio.sleep(0.01)
            body = {"model": MODEL, "prompt": "lift", "max_tokens": 1}
            meanwhile = []
            for _ in range(20):
                before = (await client.batch(batch_id))["request_counts"]["completed"]
                assert (await http.post(COMPLETIONS, json=body)).status_code == 200
                meanwhile.append((await client.batch(batch_id))["request_counts"]["completed"] - before)
            assert sorted(meanwhile)[10] == 0, (
                meanwhile
            )  # without a slot it would wait for the end of a batch's request
            batch = await client.batch(batch_id)
            assert batch["status"] == "in_progress"

    scheduler = {"max_running_requests": 4}
    with fake_server(ENGINE, scheduler=scheduler, server=in_folder(tmp_path)) as server:
        run(scenario(server))


@pytest.mark.full
def test_an_engine_that_is_killed_costs_no_response_and_is_no_error_of_a_poll(tmp_path: Path) -> None:
    """Killed twice, it starts again after 8 s, longer than the retries of a request last."""

    async def scenario(server: Server) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            client = BatchClient(http)
            batch_id = await client.create(batch_lines(NUM_REQUESTS, max_tokens=20))
            while (await client.batch(batch_id))["request_counts"]["completed"] < NUM_REQUESTS // 4:
                await asyncio.sleep(0.01)
            first = server.engine_pid
            os.kill(first, signal.SIGKILL)
            while server.engine_pid == first:
                await asyncio.sleep(0.05)
            os.kill(server.engine_pid, signal.SIGKILL)
            while (await http.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
            assert (await client.batch(batch_id))["status"] == "in_progress"
            batch = await client.wait(batch_id)
            assert batch["request_counts"] == {"total": NUM_REQUESTS, "completed": NUM_REQUESTS, "failed": 0}

    with fake_server(ENGINE, server=in_folder(tmp_path), watch={"first_backoff": 8.0}) as server:
        run(scenario(server))
