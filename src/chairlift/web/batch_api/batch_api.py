"""BatchApi: OpenAI's Files and Batch APIs over the other routes of a service."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

import orjson

from chairlift.core.errors import Unavailable
from chairlift.core.load_report import ReplicaState
from chairlift.observability.tracing.tracer import Tracer
from chairlift.protocol.batches.batch_fields import BATCHES_PATH
from chairlift.protocol.batches.file_fields import FILES_PATH
from chairlift.web.access_log import AccessRecord
from chairlift.web.batch_api.batch_models import BatchModels
from chairlift.web.batch_api.batch_routes import BatchRoutes
from chairlift.web.batch_api.batch_slots import BatchSlots, Room
from chairlift.web.batch_api.batch_state import BatchState
from chairlift.web.batch_api.file_routes import FileRoutes
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.batch_run import BatchResponse, Sender
from chairlift.web.batch_files.senders import AppSender
from chairlift.web.body import App, Receive, Scope, Send
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.middleware import RequestMiddleware
from chairlift.web.request_info import request_info
from chairlift.web.route_entry import RouteEntry
from chairlift.web.service.http_config import HttpConfig

log = logging.getLogger(__name__)

BATCH_PRIORITY = 100
"""Priority of a batch's request that names none: with the default ageing, 1,000 s of waiting."""

POLL_SECONDS = 0.2
OPEN_RETRY_SECONDS = 30.0
"""Seconds after which the folder of an earlier start is opened again where that has failed."""


class BatchApi:
    """The files and batches of one service. Belongs to one event loop."""

    def __init__(
        self, config: HttpConfig, lifecycle: Lifecycle, endpoints: Mapping[str, App], room: Room,
        models: BatchModels, *,
        on_response: Callable[[AccessRecord], None] | None = None, tracer: Tracer | None = None,
        is_strict: bool = False, prioritized_paths: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Prepare the APIs; nothing is opened yet.

        Args:
            config: limits of HTTP, of files and of batches.
            lifecycle: whether the service accepts requests.
            endpoints: path of each of BATCH_ENDPOINTS -> its application.
            room: the load of the service.
            models: the models of the service.
            on_response: counts the responses to requests of batches.
            tracer: traces them; None traces none.
            is_strict: whether fields without effect are rejected.
            prioritized_paths: those of `endpoints` whose requests get BATCH_PRIORITY.
        """
        self._lifecycle, self._prioritized_paths = lifecycle, frozenset(prioritized_paths)
        self._app = RequestMiddleware(_dispatch(endpoints), on_response=on_response, tracer=tracer)
        self._slots = BatchSlots(config.files.max_batch_requests, room)
        self._state = BatchState(config.files, config.max_body_bytes, self._slots, self._sender_of, models)
        self._files = FileRoutes(self._state, config, lifecycle, is_strict=is_strict)
        self._batches = BatchRoutes(self._state, config, lifecycle, is_strict=is_strict)

    def routes(self) -> Iterable[RouteEntry]:
        """Return the routes of files and batches."""
        files, batches = self._files, self._batches
        return [
            ("POST", FILES_PATH, files.upload),
            ("GET", FILES_PATH, files.list),
            ("GET", f"{FILES_PATH}/{{id}}", files.retrieve),
            ("DELETE", f"{FILES_PATH}/{{id}}", files.delete),
            ("GET", f"{FILES_PATH}/{{id}}/content", files.content),
            ("POST", BATCHES_PATH, batches.create),
            ("GET", BATCHES_PATH, batches.list),
            ("GET", f"{BATCHES_PATH}/{{id}}", batches.retrieve),
            ("POST", f"{BATCHES_PATH}/{{id}}/cancel", batches.cancel),
        ]

    async def resume(self) -> None:
        """Go on with the batches of an earlier start, once requests are served and the folder can be opened."""
        if not self._state.has_earlier_files:
            return
        while self._lifecycle.state is not ReplicaState.READY:
            await asyncio.sleep(POLL_SECONDS)
        has_failed = False
        while True:
            try:
                await self._state.open()
                return
            except Unavailable as error:
                if not has_failed:  # log only the first of a series of failures
                    log.warning(
                        "files and batches are not served: %s; trying again every %g s", error.message,
                        OPEN_RETRY_SECONDS,
                    )  # fmt: skip
            except Exception:
                if not has_failed:
                    log.exception("internal error: files and batches are not served")
            has_failed = True
            await asyncio.sleep(OPEN_RETRY_SECONDS)

    def stop(self) -> None:
        """Let no further request of a batch begin; those that are open go on."""
        self._slots.stop()

    def abort_all(self) -> None:
        """Abort the open requests of all batches, which are sent again after the next start."""
        self._state.abort_all()

    async def close(self) -> None:
        """Stop the batches where they are, and release the folder."""
        await self._state.close()

    def _sender_of(self, tenant: str) -> Sender:
        """Return what sends the requests of a tenant's batches."""

        async def send(line: BatchLine) -> BatchResponse:
            if line.path in self._prioritized_paths:
                line = _with_priority(line)
            with self._slots.opened(tenant) as info:
                return await AppSender(self._app, lambda: info)(line)

        return send


def _dispatch(endpoints: Mapping[str, App]) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request_info(scope).route_path = scope["path"]
        await endpoints[scope["path"]](scope, receive, send)

    return app


def _with_priority(line: BatchLine) -> BatchLine:
    body = orjson.loads(line.body)
    if body.get("priority") is not None:
        return line
    return BatchLine(line.number, line.custom_id, line.path, orjson.dumps({**body, "priority": BATCH_PRIORITY}))
