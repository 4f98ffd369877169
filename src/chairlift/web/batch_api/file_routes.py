"""FileRoutes: serves /v1/files of OpenAI's API."""

import asyncio
from typing import BinaryIO
from urllib.parse import quote

from chairlift.web.batch_api.batch_state import BatchState
from chairlift.web.batch_api.file_store import FileStore, file_not_found
from chairlift.web.batch_api.list_page import list_page
from chairlift.web.batch_api.private_folder import storage_error
from chairlift.web.batch_api.read_upload import read_upload
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.error_responses import Header
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.query_fields import query_fields
from chairlift.web.request_info import request_info
from chairlift.web.send_response import send_object
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.write_timeout import WriteTimeout

MAX_LIMIT = 10_000
SENT_BYTES = 262_144
"""Bytes of a file that are read and sent at once."""


class FileRoutes:
    """The routes /v1/files, /v1/files/{id} and /v1/files/{id}/content."""

    def __init__(self, state: BatchState, config: HttpConfig, lifecycle: Lifecycle, *, is_strict: bool) -> None:
        """Serve the files of `state`; with `is_strict` fields without effect are rejected."""
        self._state, self._config, self._lifecycle, self._is_strict = state, config, lifecycle, is_strict

    async def upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store a file. Raises as read_upload() does."""
        self._lifecycle.check_not_leaving()
        tenant, files = await self._open(scope)
        config = self._config
        stored, headers = await read_upload(
            scope, receive, files, tenant, max_file_bytes=config.files.max_file_bytes, seconds=config.body_timeout,
            is_strict=self._is_strict,
        )  # fmt: skip
        await send_object(send, stored.to_object(), headers=headers)

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List the tenant's files, those of one `purpose` if the query has it."""
        tenant, files = await self._open(scope)
        objects = [each.to_object() for each in files.of_tenant(tenant, query_fields(scope).get("purpose") or None)]
        await send_object(send, list_page(scope, objects, MAX_LIMIT, MAX_LIMIT))

    async def retrieve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Describe a file. Raises NotFound."""
        tenant, files = await self._open(scope)
        await send_object(send, files.get(tenant, scope["path_params"]["id"]).to_object())

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delete a file; a batch that was made of it goes on. Raises NotFound."""
        tenant, files = await self._open(scope)
        file_id = scope["path_params"]["id"]
        await asyncio.to_thread(files.delete, tenant, file_id)
        await send_object(send, {"id": file_id, "object": "file", "deleted": True})

    async def content(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the content of a file. Raises NotFound."""
        tenant, files = await self._open(scope)
        stored = files.get(tenant, scope["path_params"]["id"])
        try:
            file = await asyncio.to_thread(files.path(stored).open, "rb")
        except FileNotFoundError:  # deleted since
            raise file_not_found(stored.id) from None
        except OSError as error:
            raise storage_error(error) from error
        with file, WriteTimeout(scope, send, self._config.write_timeout) as timed:
            headers = [*_content_headers(stored.file_name), (b"content-length", b"%d" % stored.num_bytes)]
            await timed.send({"type": "http.response.start", "status": 200, "headers": headers})
            if scope["method"] != "HEAD":
                await _send_file(file, timed.send)
            await timed.send({"type": "http.response.body", "body": b""})

    async def _open(self, scope: Scope) -> tuple[str, FileStore]:
        """Return the tenant and the files. Raises Unavailable."""
        return request_info(scope).authenticated.tenant, (await self._state.open()).files


async def _send_file(file: BinaryIO, send: Send) -> None:
    while piece := await asyncio.to_thread(file.read, SENT_BYTES):
        await send({"type": "http.response.body", "body": piece, "more_body": True})


def _content_headers(file_name: str) -> "list[Header]":
    name = f"attachment; filename*=UTF-8''{quote(file_name)}"
    return [
        (b"content-type", b"application/octet-stream"), (b"content-disposition", name.encode()),
        (b"x-content-type-options", b"nosniff"),
    ]  # fmt: skip
