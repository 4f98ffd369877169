"""BatchRoutes over a whole server: batches from their creation to their outputs, and the errors of each route."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.load_report import ReplicaState
from chairlift.protocol.batches.batch_fields import BATCH_ENDPOINTS
from chairlift.web.batch_api import batch_store, file_store
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.files_config import FilesConfig
from support_batch_api import BODIES, BatchClient, batch_line, batch_lines
from support_batch_runner import quicken
from support_server import MODEL, open_server, run
from support_services import fake_service


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


def with_server(scenario: Callable[[BatchClient], Awaitable[None]], **options: Any) -> None:
    async def all_of_it() -> None:
        async with open_server(fake_service(), **options) as server:
            await scenario(BatchClient(server.http))

    run(all_of_it())


def test_every_endpoint_is_tried() -> None:
    assert BODIES.keys() == set(BATCH_ENDPOINTS)


@pytest.mark.parametrize("endpoint", BODIES)
@pytest.mark.parametrize("is_strict", [False, True])
def test_a_batch_has_the_responses_that_a_client_gets(endpoint: str, is_strict: bool) -> None:
    async def scenario(client: BatchClient) -> None:
        body = {"model": MODEL, **BODIES[endpoint]}
        direct = (await client.call("POST", endpoint, json=body)).json()
        bodies = {**{f"r{number}": body for number in range(5)}, "bad": {"model": MODEL}}
        content = b"".join(
            json.dumps({"custom_id": name, "method": "POST", "url": endpoint, "body": each}).encode() + b"\n"
            for name, each in bodies.items()
        )
        batch = await client.wait(await client.create(content, endpoint, metadata={"a": "b"}))
        assert batch["status"] == "completed" and batch["metadata"] == {"a": "b"}
        assert batch["request_counts"] == {"total": 6, "completed": 5, "failed": 1}
        outputs, errors = await client.entries(batch["output_file_id"]), await client.entries(batch["error_file_id"])
        assert set(outputs) == {f"r{number}" for number in range(5)} and set(errors) == {"bad"}
        assert set(outputs["r0"]["response"]["body"]) == set(direct)
        assert errors["bad"]["response"]["status_code"] == 400

    with_server(scenario, reject_unknown_fields=is_strict)


def test_two_batches_at_once_a_deleted_input_and_a_list() -> None:
    async def scenario(client: BatchClient) -> None:
        file_id = await client.upload(batch_lines(30))
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "2h"}
        first, second = [(await client.call("POST", "/v1/batches", json=body)).json() for _ in range(2)]
        assert first["expires_at"] - first["created_at"] == 7200 and first["status"] == "validating"
        await client.call("DELETE", f"/v1/files/{file_id}")
        batches = [await client.wait(each["id"]) for each in (first, second)]
        assert [each["request_counts"]["completed"] for each in batches] == [30, 30]
        assert len({each["output_file_id"] for each in batches}) == 2
        listed = (await client.call("GET", "/v1/batches?limit=1")).json()
        rest = (await client.call("GET", f"/v1/batches?after={listed['last_id']}")).json()
        assert listed["has_more"] and not rest["has_more"]
        assert sorted(each["id"] for each in (*listed["data"], *rest["data"])) == sorted(each["id"] for each in batches)

    with_server(scenario)


def test_cancellation_aborts_the_open_requests() -> None:
    async def scenario(client: BatchClient) -> None:
        batch_id = await client.create(batch_lines(2000, max_tokens=200))
        await client.wait(batch_id, "in_progress")
        response = await client.call("POST", f"/v1/batches/{batch_id}/cancel")
        assert response.status_code == 200 and response.json()["status"] in ("cancelling", "cancelled")
        batch = await client.wait(batch_id)
        assert batch["status"] == "cancelled" and batch["request_counts"]["completed"] < 2000
        load = (await client.call("GET", "/load")).json()
        assert load["waiting_requests"] == 0
        assert (await client.call("POST", f"/v1/batches/{batch_id}/cancel")).status_code == 200
        done = await client.wait(await client.create(batch_lines(1)))
        assert (await client.call("POST", f"/v1/batches/{done['id']}/cancel")).status_code == 400

    with_server(scenario)


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "no file": ({"input_file_id": None}, 400, "input_file_id"),
    "a number": ({"input_file_id": 5}, 400, "input_file_id"),
    "an unknown file": ({"input_file_id": "file-0"}, 404, "input_file_id"),
    "a path": ({"input_file_id": "../../etc/passwd"}, 404, "input_file_id"),
    "a long id": ({"input_file_id": "x" * 1000}, 400, "input_file_id"),
    "another route": ({"endpoint": "/admin/drain"}, 400, "endpoint"),
    "batches of batches": ({"endpoint": "/v1/batches"}, 400, "endpoint"),
    "no route": ({"endpoint": None}, 400, "endpoint"),
    "a list": ({"endpoint": ["/v1/completions"]}, 400, "endpoint"),
    "no window": ({"completion_window": None}, 400, "completion_window"),
    "another unit": ({"completion_window": "24m"}, 400, "completion_window"),
    "a long window": ({"completion_window": "169h"}, 400, "completion_window"),
    "a window of nothing": ({"completion_window": "0h"}, 400, "completion_window"),
    "metadata": ({"metadata": {"a": 5}}, 400, "metadata"),
    "much metadata": ({"metadata": {str(number): "" for number in range(17)}}, 400, "metadata"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bodies(name: str) -> None:
    fields, status, param = BAD[name]

    async def scenario(client: BatchClient) -> None:
        body = {"input_file_id": await client.upload(b"x"), "endpoint": "/v1/completions", "completion_window": "24h"}
        response = await client.call("POST", "/v1/batches", json=body | fields)
        error = response.json()["error"]
        assert response.status_code == status and error["param"] == param and len(error["message"]) < 400
        assert (await client.call("GET", "/v1/batches")).json()["data"] == []

    with_server(scenario)


def test_a_file_of_another_purpose_and_fields_without_effect() -> None:
    async def scenario(client: BatchClient) -> None:
        body = {"endpoint": "/v1/completions", "completion_window": "24h", "output_expires_after": {"seconds": 3600}}
        wrong = {**body, "input_file_id": await client.upload(b"x", purpose="user_data")}
        response = await client.call("POST", "/v1/batches", json=wrong)
        assert response.status_code == 400 and "user_data, it must be batch" in response.json()["error"]["message"]
        good = {**body, "input_file_id": await client.upload(batch_lines(1))}
        response = await client.call("POST", "/v1/batches", json=good)
        assert response.headers["x-ignored-parameters"] == "output_expires_after"

    with_server(scenario)


def test_unknown_batches_and_bad_queries() -> None:
    async def scenario(client: BatchClient) -> None:
        for method, path in (("GET", ""), ("POST", "/cancel")):
            for batch_id in ("batch_0", "..%2Fx", "x" * 5000):
                assert (await client.call(method, f"/v1/batches/{batch_id}{path}")).status_code == 404
        for query in ("limit=101", "order=x", "after=batch_0"):
            assert (await client.call("GET", f"/v1/batches?{query}")).status_code == 400

    with_server(scenario)


def test_a_tenant_has_so_many_open_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_store, "MAX_OPEN_BATCHES", 1)

    async def scenario(client: BatchClient) -> None:
        batch_id = await client.create(batch_lines(2000, max_tokens=200))
        body = {"input_file_id": await client.upload(b"x"), "endpoint": "/v1/completions", "completion_window": "24h"}
        response = await client.call("POST", "/v1/batches", json=body)
        assert response.status_code == 429 and int(response.headers["retry-after"]) == 60
        await client.call("POST", f"/v1/batches/{batch_id}/cancel")
        await client.wait(batch_id)
        assert (await client.call("POST", "/v1/batches", json=body)).status_code == 200

    with_server(scenario)


def test_a_batch_goes_on_in_the_next_server(tmp_path: Path) -> None:
    files = FilesConfig(files_folder=tmp_path / "state", max_batch_requests=4)

    async def scenario() -> None:
        async with open_server(fake_service(), files=files) as server:
            client = BatchClient(server.http)
            batch_id = await client.create(batch_lines(60))
            while (await client.batch(batch_id))["request_counts"]["completed"] < 3:
                await asyncio.sleep(0)
        async with open_server(fake_service(), files=files) as server:
            client = BatchClient(server.http)
            batch = await client.wait(batch_id)
            assert batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
            assert len(await client.entries(batch["output_file_id"])) == 60

    run(scenario())


def test_a_model_that_is_not_served_fails_the_batch_before_any_request() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.wait(await client.create(batch_lines(2) + batch_line("bad", model="other")))
        assert batch["status"] == "failed" and batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
        [error] = batch["errors"]["data"]
        assert error["code"] == "invalid_line" and error["line"] == 3 and "'other' is not served" in error["message"]
        none = await client.wait(await client.create(batch_line("a", model=None)))
        assert none["request_counts"]["completed"] == 1

    with_server(scenario)


def test_files_and_batches_are_served_while_the_engine_is_not() -> None:
    """A client that polls its batch sees no error of an engine that starts again."""

    async def all_of_it() -> None:
        async with open_server(fake_service()) as server:
            client, lifecycle = BatchClient(server.http), server.replica.lifecycle
            batch = await client.wait(await client.create(batch_lines(1)))
            state = ReplicaState.STARTING
            lifecycle.mark_started(lambda: state)
            assert (await client.call("GET", "/readyz")).status_code == 503
            file_id = await client.upload(batch_lines(2))
            for path in ("files", f"files/{file_id}", f"files/{file_id}/content", "batches", f"batches/{batch['id']}"):
                assert (await client.call("GET", f"/v1/{path}")).status_code == 200, path
            waiting = await client.create(batch_lines(1))
            assert (await client.call("POST", f"/v1/batches/{waiting}/cancel")).status_code == 200
            await client.wait(waiting, "cancelled")
            later = await client.create(batch_lines(1))
            assert (await client.call("DELETE", f"/v1/files/{file_id}")).status_code == 200
            state = ReplicaState.READY
            assert (await client.wait(later))["status"] == "completed"
            lifecycle.drain()
            assert (await client.call("GET", f"/v1/batches/{later}")).status_code == 200
            form: dict[str, Any] = {"files": {"file": ("a", b"x")}, "data": {"purpose": "batch"}}
            assert (await client.call("POST", "/v1/files", **form)).status_code == 503
            assert (await client.call("POST", "/v1/batches", json={})).status_code == 503

    run(all_of_it())


def test_an_input_file_that_is_deleted_at_this_moment_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    async def scenario(client: BatchClient) -> None:
        body = {"input_file_id": await client.upload(b"x"), "endpoint": "/v1/completions", "completion_window": "24h"}
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", gone)
            response = await client.call("POST", "/v1/batches", json=body)
        assert response.status_code == 404 and response.json()["error"]["param"] == "input_file_id"
        assert (await client.call("GET", "/v1/batches")).json()["data"] == []

    with_server(scenario)


def test_no_batch_begins_while_files_and_batches_have_too_many_bytes() -> None:
    async def scenario(client: BatchClient) -> None:
        content = batch_lines(200, max_tokens=200)
        file_id = await client.upload(content)
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        first = (await client.call("POST", "/v1/batches", json=body)).json()
        await client.call("DELETE", f"/v1/files/{file_id}")
        form: dict[str, Any] = {"files": {"file": ("a", content)}, "data": {"purpose": "batch"}}
        response = await client.call("POST", "/v1/files", **form)
        assert response.status_code == 413, "the requests of the batch stay on the disk"
        await client.call("POST", f"/v1/batches/{first['id']}/cancel")
        batch = await client.wait(first["id"])
        if batch["output_file_id"] is not None:
            await client.call("DELETE", f"/v1/files/{batch['output_file_id']}")
        assert (await client.call("POST", "/v1/files", **form)).status_code == 200

    with_server(scenario, files=FilesConfig(files_bytes=len(batch_lines(200, max_tokens=200)) + 10))


def test_no_batch_begins_while_its_tenant_has_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs are files, and are always written."""

    async def scenario(client: BatchClient) -> None:
        file_id = await client.upload(batch_lines(1))
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        monkeypatch.setattr(file_store, "MAX_FILES", 1)
        response = await client.call("POST", "/v1/batches", json=body)
        assert response.status_code == 429 and int(response.headers["retry-after"]) == 60
        assert response.json()["error"]["message"] == "1 files are stored, the limit is 1; delete some"
        monkeypatch.setattr(file_store, "MAX_FILES", 2)
        assert (await client.call("POST", "/v1/batches", json=body)).status_code == 200

    with_server(scenario)


@pytest.mark.parametrize("is_temporary", [False, True])
def test_a_batch_that_comes_with_the_end_of_the_server_is_rejected_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_temporary: bool
) -> None:  # fmt: skip
    folder = None if is_temporary else tmp_path / "state"

    async def scenario() -> None:
        async with open_server(fake_service(), files=FilesConfig(files_folder=folder)) as server:
            client = BatchClient(server.http)
            body = {"input_file_id": await client.upload(batch_lines(1)), "endpoint": "/v1/completions"}
            body["completion_window"] = "24h"
            add = BatchStore.add

            async def late(self: BatchStore, *arguments: Any) -> None:
                await server.batches.close()
                await add(self, *arguments)

            monkeypatch.setattr(BatchStore, "add", late)
            response = await client.call("POST", "/v1/batches", json=body)
            monkeypatch.undo()
            assert response.status_code == (503 if is_temporary else 200)
            for method, path, options in (
                ("POST", "batches", {"json": body}), ("GET", "batches", {}), ("GET", "files", {}),
                ("POST", "files", {"files": {"file": ("a", b"x")}, "data": {"purpose": "batch"}}),
            ):  # fmt: skip
                assert (await client.call(method, f"/v1/{path}", **options)).status_code == 503, (method, path)
        if not is_temporary:
            [kept] = BatchStore(tmp_path / "state" / "batches", DiskUsage(1)).unfinished()
            assert kept.id == response.json()["id"] and kept.status == "validating" and not kept.errors

    run(scenario())
