"""BatchRoutes: serves /v1/batches of OpenAI's API."""

import secrets
import time
from collections.abc import Callable

from chairlift.core.errors import RateLimited
from chairlift.core.validation import invalid_param
from chairlift.protocol.batches.batch_fields import BatchRequest, read_batch_request
from chairlift.protocol.batches.file_fields import BATCH_PURPOSE
from chairlift.web.batch_api.batch_state import BatchState, OpenFolder
from chairlift.web.batch_api.batch_store import FULL_RETRY_SECONDS
from chairlift.web.batch_api.file_store import file_not_found
from chairlift.web.batch_api.list_page import list_page
from chairlift.web.batch_api.private_folder import storage_error
from chairlift.web.batch_api.stored_batch import StoredBatch
from chairlift.web.body import Receive, Scope, Send, parse_json_object, read_body
from chairlift.web.ignored_fields import ignored_fields_header
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.request_info import request_info
from chairlift.web.send_response import send_object
from chairlift.web.service.http_config import HttpConfig

DEFAULT_LIMIT, MAX_LIMIT = 20, 100


class BatchRoutes:
    """The routes /v1/batches, /v1/batches/{id} and /v1/batches/{id}/cancel."""

    def __init__(
        self, state: BatchState, config: HttpConfig, lifecycle: Lifecycle, *, is_strict: bool,
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """Serve the batches of `state`; with `is_strict` fields without effect are rejected."""
        self._state, self._config, self._lifecycle = state, config, lifecycle
        self._is_strict, self._now = is_strict, now

    async def create(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin a batch. Raises InvalidRequest, NotFound for an unknown file, RateLimited, Unavailable."""
        self._lifecycle.check_not_leaving()
        config = self._config
        body = await read_body(scope, receive, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
        request = read_batch_request(parse_json_object(body))
        headers = ignored_fields_header(request.ignored, is_strict=self._is_strict)
        tenant, opened = await self._open(scope)
        file = opened.files.get(tenant, request.input_file_id, "input_file_id")
        if file.purpose != BATCH_PURPOSE:
            raise invalid_param(
                "input_file_id", f"names a file of the purpose {file.purpose}, it must be {BATCH_PURPOSE}"
            )
        if problem := opened.files.number_problem(tenant):  # its outputs are files, too
            raise RateLimited(problem, retry_after=FULL_RETRY_SECONDS)
        opened.runner.check_open()
        batch = self._new_batch(tenant, request)
        try:
            await opened.batches.add(batch, opened.files.path(file))
        except FileNotFoundError:
            opened.runner.check_open()  # a temporary folder is removed at the end
            raise file_not_found(file.id, "input_file_id") from None
        opened.runner.start(batch)
        await send_object(send, batch.to_object(), headers=headers)

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List the tenant's batches."""
        tenant, opened = await self._open(scope)
        objects = [each.to_object() for each in opened.batches.of_tenant(tenant)]
        await send_object(send, list_page(scope, objects, DEFAULT_LIMIT, MAX_LIMIT))

    async def retrieve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the state of a batch. Raises NotFound."""
        tenant, opened = await self._open(scope)
        await send_object(send, opened.batches.get(tenant, scope["path_params"]["id"]).to_object())

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin to cancel a batch. Raises NotFound, and InvalidRequest for one that has ended."""
        tenant, opened = await self._open(scope)
        batch = opened.batches.get(tenant, scope["path_params"]["id"])
        try:
            await opened.runner.cancel(batch)
        except OSError as error:
            raise storage_error(error) from error
        await send_object(send, batch.to_object())

    async def _open(self, scope: Scope) -> tuple[str, OpenFolder]:
        """Return the tenant, and the folder of files and batches. Raises Unavailable."""
        return request_info(scope).authenticated.tenant, await self._state.open()

    def _new_batch(self, tenant: str, request: BatchRequest) -> StoredBatch:
        now = int(self._now())
        return StoredBatch(
            id=f"batch_{secrets.token_hex(16)}", tenant=tenant, endpoint=request.endpoint,
            input_file_id=request.input_file_id, completion_window=request.completion_window,
            metadata=dict(request.metadata), created_at=now, expires_at=now + request.window_seconds,
        )  # fmt: skip
