"""FileRoutes over a whole server: files of OpenAI's API, each tenant's own, and the errors of each route."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import Unavailable
from chairlift.web.auth.api_keys import KeyRing
from chairlift.web.batch_api import file_routes
from chairlift.web.batch_api.files_config import FilesConfig
from support_batch_api import BatchClient
from support_server import open_server, run
from support_services import fake_service


def with_server(
    scenario: Callable[[BatchClient], Awaitable[None]], keys: KeyRing | None = None, **options: Any
) -> None:
    async def all_of_it() -> None:
        async with open_server(fake_service(), keys=keys, **options) as server:
            await scenario(BatchClient(server.http))

    run(all_of_it())


def test_a_file_is_stored_listed_read_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_routes, "SENT_BYTES", 1000)
    content = os.urandom(10_500)

    async def scenario(client: BatchClient) -> None:
        file_id = await client.upload(content, name="../a é.jsonl")
        other = await client.upload(b"x", purpose="user_data")
        one = (await client.call("GET", f"/v1/files/{file_id}")).json()
        assert (one["id"], one["bytes"], one["filename"]) == (file_id, 10_500, "a é.jsonl")
        listed = (await client.call("GET", "/v1/files")).json()
        assert [each["id"] for each in listed["data"]] == [other, file_id] and listed["data"][1] == one
        listed = (await client.call("GET", "/v1/files?purpose=batch&limit=1&order=asc")).json()
        assert [each["id"] for each in listed["data"]] == [file_id] and not listed["has_more"]
        whole = await client.call("GET", f"/v1/files/{file_id}/content")
        assert whole.content == content and whole.headers["content-type"] == "application/octet-stream"
        assert whole.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20%C3%A9.jsonl"
        head = await client.call("HEAD", f"/v1/files/{file_id}/content")
        assert head.headers["content-length"] == "10500" and head.content == b""
        deleted = await client.call("DELETE", f"/v1/files/{file_id}")
        assert deleted.json() == {"id": file_id, "object": "file", "deleted": True}
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            response = await client.call(method, f"/v1/files/{file_id}{path}")
            error = response.json()["error"]
            assert response.status_code == 404 and error["type"] == "not_found_error" and file_id in error["message"]

    with_server(scenario)


def test_a_tenant_does_not_see_the_files_of_another(tmp_path: Path) -> None:
    ring = KeyRing({**read_keys_of("alice"), **read_keys_of("bob")})

    async def scenario(client: BatchClient) -> None:
        assert (await client.call("GET", "/v1/files")).status_code == 401
        alice, bob = BatchClient(client.http, "alice"), BatchClient(client.http, "bob")
        file_id = await alice.upload(b"x")
        assert (await bob.call("GET", "/v1/files")).json()["data"] == []
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            assert (await bob.call(method, f"/v1/files/{file_id}{path}")).status_code == 404
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        assert (await bob.call("POST", "/v1/batches", json=body)).status_code == 404
        assert (await alice.call("GET", f"/v1/files/{file_id}/content")).content == b"x"

    with_server(scenario, ring)


def read_keys_of(tenant: str) -> Any:
    import hashlib

    from chairlift.web.auth.principal import Principal

    return {hashlib.sha256(tenant.encode()).digest(): Principal(tenant)}


def test_errors_have_openais_form() -> None:
    async def scenario(client: BatchClient) -> None:
        form: dict[str, Any] = {"files": {"file": ("a", b"x" * 101)}, "data": {"purpose": "batch"}}
        for status, param, options in (
            (413, None, form),
            (415, None, {"json": {}}),
            (400, "purpose", {"files": {"file": ("a", b"x")}, "data": {"purpose": "x"}}),
            (400, "file", {"files": {"other": ("a", b"x")}, "data": {"purpose": "batch"}}),
        ):
            response = await client.call("POST", "/v1/files", **options)
            error = response.json()["error"]
            assert response.status_code == status and set(error) == {"message", "type", "param", "code"}
            assert error["param"] == param
        for path in ("/v1/files?limit=0", "/v1/files?order=x", "/v1/files?after=x"):
            assert (await client.call("GET", path)).status_code == 400
        for path in ("..%2F..%2Fetc%2Fpasswd", "%00", "x" * 5000, "é"):
            assert (await client.call("GET", f"/v1/files/{path}")).status_code == 404
        assert (await client.call("PUT", "/v1/files/x")).headers["allow"]

    with_server(scenario, files=FilesConfig(max_file_bytes=100))


def test_fields_without_effect_are_named_or_rejected() -> None:
    options: dict[str, Any] = {"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "color": "red"}}

    async def named(client: BatchClient) -> None:
        assert (await client.call("POST", "/v1/files", **options)).headers["x-ignored-parameters"] == "color"

    async def rejected(client: BatchClient) -> None:
        assert (await client.call("POST", "/v1/files", **options)).status_code == 400
        assert (await client.call("GET", "/v1/files")).json()["data"] == []

    with_server(named)
    with_server(rejected, reject_unknown_fields=True)


def test_a_folder_that_cannot_be_used_is_an_error_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    async def scenario(client: BatchClient) -> None:
        response = await client.call("GET", "/v1/files")
        error = response.json()["error"]
        assert response.status_code == 503 and error["code"] == Unavailable.code
        assert "cannot be used: Not a directory" in error["message"] and str(tmp_path) not in error["message"]

    with_server(scenario, files=FilesConfig(files_folder=tmp_path / "file" / "x"))


def test_a_file_that_is_deleted_at_this_moment_is_not_found(tmp_path: Path) -> None:
    async def scenario(client: BatchClient) -> None:
        file_id = await client.upload(b"x")
        (tmp_path / "state" / "files" / f"{file_id}.data").unlink()
        response = await client.call("GET", f"/v1/files/{file_id}/content")
        assert response.status_code == 404 and file_id in response.json()["error"]["message"]

    with_server(scenario, files=FilesConfig(files_folder=tmp_path / "state"))
